#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The parts of test_systemd.sh, run by root inside of its container; each waits on conditions, at most 60 s.
set -eu
fail() { echo "FAILED: $*" >&2; exit 1; }
RANKS=3 PER_RANK=16

until_true() {
    local until=$((SECONDS + 60))
    while [ $SECONDS -lt $until ]; do
        eval "$1" && return
        sleep 0.05 # between two looks
    done
    fail "never came: $1"
}
show() { systemctl show -P "$1" "${2:-poised}"; }
status() { curl -s --max-time 5 --unix-socket /run/poise/status.sock http://poised/status; }
decided() { status | jq "[.groups[] | select(.job == \"$1\").decided] | max // 0" 2>/dev/null | grep . || echo 0; }
goes_on() { # the job decides steps beyond where it was
    local from
    from=$(decided "$1")
    until_true "[ \$(decided $1) -gt $from ]"
}
# A drop-in of poised's unit; - as text takes it away.
drop_in() {
    local file=/run/systemd/system/poised.service.d/$1.conf
    mkdir -p "${file%/*}"
    if [ "$2" = - ]; then rm -f "$file"; else printf '%b' "$2" >"$file"; fi
    systemctl daemon-reload
}

# JOB STEPS: one unit a rank, of an unprivileged user. A step takes about 50 ms of sleep, whatever the machine.
trainers() {
    local r
    for ((r = 0; r < RANKS; r++)); do
        systemctl reset-failed "$1-$r" 2>/dev/null || true
        systemd-run --quiet --unit="$1-$r" --uid=alice -p RemainAfterExit=yes -p Type=exec /usr/libexec/poise/trainer \
            --rank $r --ranks $RANKS --steps "$2" --per-rank $PER_RANK --cycle 20 --job "$1"
    done
    until_true "[ \$(decided $1) -gt 3 ]"
}
stop_trainers() {
    local r
    for ((r = 0; r < RANKS; r++)); do systemctl stop "$1-$r" 2>/dev/null || true; done
}
# All ended well: they check every byte themselves; what all delivered is what all submitted.
trainers_ended() { # JOB STEPS
    local r
    for ((r = 0; r < RANKS; r++)); do
        until_true "[ \$(show SubState $1-$r) != running ]"
        [ "$(show Result "$1-$r")" = success ] || fail "$1: rank $r: $(journalctl -u "$1-$r" --no-pager -n 5 -o cat)"
    done
    journalctl --sync
    for ((r = 0; r < RANKS; r++)); do journalctl -u "$1-$r" --no-pager -o cat; done | python3 -c '
import re, sys
rows = [tuple(map(int, m)) for m in re.findall(r"(\d+) samples in, (\d+) out, (\d+) dropped", sys.stdin.read())]
into, out, dropped = map(sum, zip(*rows))
assert len(rows) == int(sys.argv[1]) and into == int(sys.argv[2]) and out == into and dropped == 0, rows' \
        $RANKS $(($2 * PER_RANK * RANKS)) || fail "$1: samples were lost or doubled"
    stop_trainers "$1"
}

# ---------------------------------------------------------------------------------------------------------------- parts
start() {
    systemd-sysusers 2>/dev/null
    systemd-tmpfiles --create poise.conf
    [ "$(stat -c '%U %a' /run/poise)" = "poise 755" ] || fail "the folder is not poise's before the start"
    ldconfig
    useradd -M -u 5001 -s /bin/sh alice
    systemctl daemon-reload
    systemctl enable --now --quiet poised
    [ "$(show ActiveState)" = active ] || fail "not active"
    [ "$(ps -o user= -p "$(show MainPID)")" = poise ] || fail "it runs as $(ps -o user= -p "$(show MainPID)")"
    [ "$(systemctl is-enabled poised)" = enabled ] || fail "not enabled"
    [[ "$(show StatusText)" == "poised "*" serves /run/poise"* ]] || fail "status text: $(show StatusText)"
}

# What is ordered after poised finds every socket listening, also where binding takes long and where a killed one left
# files that look like sockets.
ready() {
    cat >/opt/test/probe <<'PROBE'
#!/bin/sh
for name in local.sock poised.zmq status.sock; do
    grep -q "00010000 .* /run/poise/$name\$" /proc/net/unix || { echo "$name does not listen"; exit 1; }
done
PROBE
    chmod 755 /opt/test/probe
    cat >/run/systemd/system/probe.service <<'UNIT'
[Unit]
Requires=poised.service
After=poised.service
[Service]
Type=oneshot
ExecStart=/opt/test/probe
UNIT
    drop_in slow '[Service]\nEnvironment=LD_PRELOAD=/opt/test/slow_bind.so\nRestart=no\n[Unit]\nStartLimitIntervalSec=0\n'
    local i before
    for ((i = 0; i < 3; i++)); do
        [ $i != 2 ] || systemctl kill -s KILL poised
        systemctl stop poised
        [ $i != 2 ] || [ -S /run/poise/local.sock ] || fail "a killed poised left no stale socket to be tried"
        before=$(date +%s%N)
        systemctl start probe || fail "READY=1 came before the last socket: $(journalctl -u probe --no-pager -n 3 -o cat)"
        [ $((($(date +%s%N) - before) / 1000000)) -ge 1200 ] || fail "binding was not slowed down: the test shows nothing"
    done
    drop_in slow -
    systemctl restart poised
}

users() {
    trainers users 20
    status | python3 -c 'import json,sys
g = [g for g in json.load(sys.stdin)["groups"] if g["job"] == "users"]
assert g and g[0]["uid"] == 5001 and all(p["uid"] == 5001 and p["pid"] > 0 for p in g[0]["processes"]), g' ||
        fail "the kernel does not say who the trainers are"
    trainers_ended users 20
}

restart() {
    local i
    trainers restart 400
    for ((i = 0; i < 4; i++)); do
        systemctl restart poised
        [ -S /run/poise/local.sock ] || fail "the folder went away"
        goes_on restart
    done
    systemctl kill -s KILL poised # Restart=on-failure
    goes_on restart
    trainers_ended restart 400
    [ "$(show ActiveState)" = active ] || fail "poised is $(show ActiveState)"
}

# As the unit is: a stopped daemon is ended and comes back before other machines give its node up.
watchdog() {
    local pid began
    systemctl reset-failed poised
    trainers watchdog 250
    pid=$(show MainPID) began=$SECONDS
    kill -STOP "$pid"
    until_true "[ \$(show MainPID) != $pid ] && [ \$(show ActiveState) = active ]"
    [ $((SECONDS - began)) -lt 10 ] || fail "it took $((SECONDS - began)) s: nodes are given up after 10"
    journalctl -u poised --no-pager | grep -q "Watchdog timeout" || fail "it was not the watchdog"
    trainers_ended watchdog 250
}

memory_begin() {
    systemctl reset-failed poised
    show MainPID >/opt/test/pid
    trainers memory 250
}
memory_end() {
    until_true "[ \$(show MainPID) != $(cat /opt/test/pid) ] && [ \$(show ActiveState) = active ]"
    goes_on memory
    trainers_ended memory 250
}
memory() {
    memory_begin
    systemctl set-property --runtime poised MemoryMax=128K MemorySwapMax=0
    until_true "[ \$(show MainPID) != $(cat /opt/test/pid) ]"
    systemctl set-property --runtime poised MemoryMax=infinity
    memory_end
}

# A user's log-out takes his shared memory and queues away; a run of his that goes on as a service has none to lose.
logout() {
    local shm=/dev/shm/of-alice
    trainers logout 300
    systemd-run --quiet --wait -p PAMName=login -p User=alice sh -c "echo >$shm; ipcmk -M 4096 >/dev/null; loginctl --no-legend list-sessions | grep -q alice" ||
        fail "no session"
    until_true "[ ! -e $shm ] && ! ipcs -m | grep -q alice"
    goes_on logout
    systemctl restart poised
    goes_on logout
    trainers_ended logout 300
}

priority_of() { # the newest line of poised with this text
    journalctl --sync
    journalctl -u poised --no-pager -o json | python3 -c 'import json,sys
lines = [r for r in map(json.loads, sys.stdin) if r.get("_COMM") == "poised" and sys.argv[1] in str(r["MESSAGE"])]
print(lines[-1]["PRIORITY"] if lines else "none")' "$1"
}
journal() {
    [ "$(priority_of " serves /run/poise")" = 6 ] || fail "info: $(priority_of " serves /run/poise")"
    setpriv --reuid=65534 --regid=65534 --clear-groups /usr/libexec/poise/trainer --rank 0 --ranks 1 --steps 1 --job nobody \
        2>/opt/test/nobody && fail "uid 65534 was served"
    grep -q "65534 (nobody)" /opt/test/nobody || fail "uid 65534 is not told why: $(cat /opt/test/nobody)"
    [ "$(priority_of "uid 65534 refused")" = 4 ] || fail "warning: $(priority_of "uid 65534 refused")"
    ! journalctl -u poised --no-pager -o cat | grep -q '^<[0-9]>' || fail "priorities stand in the text"
}

# A bad configuration is said once, as an error, and not tried again; an override of the socket folder works as the unit says.
configuration() {
    systemctl reset-failed poised
    mkdir -p /etc/poise
    echo "no-such-key = 1" >/etc/poise/poised.conf
    ! systemctl restart poised 2>/dev/null || fail "a bad configuration was taken"
    [ "$(show ActiveState)" = failed ] && [ "$(show ExecMainStatus)" = 2 ] && [ "$(show NRestarts)" = 0 ] ||
        fail "$(show ActiveState) $(show ExecMainStatus) $(show NRestarts)"
    [ "$(priority_of no-such-key)" = 3 ] || fail "error: $(priority_of no-such-key)"
    printf '[poised]\nsocket-dir = /run/poise-else\nlog-level = warning\n' >/etc/poise/poised.conf
    drop_in else '[Service]\nRuntimeDirectory=poise-else\n'
    systemctl restart poised
    [ -S /run/poise-else/status.sock ] || fail "no other folder"
    rm -r /etc/poise
    systemctl stop poised
    drop_in else -
    rm -rf /run/poise-else
    systemctl restart poised
}

"${1//-/_}"
