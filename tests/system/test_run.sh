#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# poisectl run: the command finds a poised of its own, runs as if started directly (streams, signals, exit status), and
# nothing is left behind, however it or poisectl ends; what goes wrong is said.
set -eu
ctl="$BUILD/poisectl"
work=$(mktemp -d)
export TMPDIR="$work/tmp"
mkdir "$TMPDIR"
unset POISE_SOCKET_DIR POISE_COORDINATORS POISE_LIBRARY PYTHONPATH
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    [ -e "$work/err" ] && tail -n 20 "$work/err"
    exit 1
}
. tests/system/lib.sh

nothing_left() {
    until_true '[ -z "$(processes_with "$TMPDIR/poise-run-")" ]'
    until_true '[ -z "$(ls -A "$TMPDIR")" ]'
}
status_is() { # status, command
    local want=$1 status=0
    shift
    "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" = "$want" ] || fail "$*: status $status, not $want"
}

# 1. poised is ready when the command begins; real trainers work; streams and arguments are the command's own.
cat >"$work/train" <<'END'
"$BUILD/poisectl" status --json >"$1/json" || exit 9
for rank in 0 1; do
    "$BUILD/trainer" --rank $rank --ranks 2 --steps 3 --per-rank 4 --job run --socket-dir "$POISE_SOCKET_DIR" &
    pids+=" $!"
done
for pid in $pids; do wait "$pid" || exit 8; done
END
status_is 0 "$ctl" run bash "$work/train" "$work"
jq -e --arg tmp "$TMPDIR" '.socket_dir | startswith($tmp + "/poise-run-")' "$work/json" >/dev/null ||
    fail "$(cat "$work/json")"
[ ! -s "$work/err" ] || fail "poised's log is shown"
nothing_left
echo "in" | "$ctl" run -- sh -c 'read -r line; echo "$line $1 $2"; echo "to stderr" >&2; exit 7' sh --verbose "a b" \
    >"$work/out" 2>"$work/err" && fail "status 0"
[ "$(cat "$work/out")" = "in --verbose a b" ] && [ "$(cat "$work/err")" = "to stderr" ] ||
    fail "streams: $(cat "$work/out")"
status_is 7 "$ctl" run sh -c 'exit 7'
status_is 137 "$ctl" run sh -c 'kill -9 $$'
status_is 0 "$ctl" run --verbose true
grep -q "serves $TMPDIR/poise-run-" "$work/err" || fail "--verbose shows no log"
nothing_left

# 2. What cannot be done is said, with a status that tells it from the command's.
status_is 127 "$ctl" run "$work/nosuch"
grep -q "nosuch: No such file" "$work/err" || fail "does not name the command"
status_is 126 "$ctl" run "$work"
status_is 2 "$ctl" run
grep -q "give COMMAND" "$work/err" || fail "no command"
status_is 2 "$ctl" run --
status_is 2 "$ctl" run --fast true
grep -q -- "--verbose" "$work/err" || fail "does not list its options"
mkdir "$work/alone" "$work/path"
cp "$ctl" "$work/alone/"
PATH="/usr/bin:/bin" status_is 125 "$work/alone/poisectl" run true
grep -q "poised is neither beside poisectl ($work/alone) nor on PATH" "$work/err" || fail "does not say where it looked"
ln -s "$BUILD/poised" "$work/path/poised"
PATH="/nonexistent::$work/path:/usr/bin:/bin" status_is 0 "$work/alone/poisectl" run \
    sh -c '[ -S "$POISE_SOCKET_DIR/local.sock" ]'
printf '#!/bin/sh\necho "the reason why" >&2\nexit 3\n' >"$work/alone/poised"
chmod +x "$work/alone/poised"
status_is 125 "$work/alone/poisectl" run touch "$work/ran"
grep -q "ended with status 3" "$work/err" && grep -q "the reason why" "$work/err" ||
    fail "does not say why poised ended"
[ ! -e "$work/ran" ] || fail "the command ran without poised"
nothing_left

# 3. From a build tree the library and the package are named, before what the user has; else nothing is.
mkdir -p "$work/tree/build" "$work/tree/client/python/poise"
cp "$ctl" "$work/tree/build/"
ln -s "$BUILD/poised" "$work/tree/build/poised"
touch "$work/tree/build/libpoise.so" "$work/tree/client/python/poise/__init__.py"
show='echo "$POISE_LIBRARY $PYTHONPATH"'
[ "$(PYTHONPATH=/mine "$work/tree/build/poisectl" run sh -c "$show")" = \
    "$work/tree/build/libpoise.so $work/tree/client/python:/mine" ] || fail "the build tree is not found"
[ "$(POISE_LIBRARY=/mine.so "$work/tree/build/poisectl" run sh -c "$show")" = "/mine.so $work/tree/client/python" ] ||
    fail "POISE_LIBRARY of the user does not count"
rm "$work/alone/poised"
[ "$(PATH="$work/path:$PATH" "$work/alone/poisectl" run sh -c "$show")" = " " ] || fail "variables without a build tree"

# 4. Signals reach the command, once.
command='for s in INT TERM HUP; do trap "echo $s >>$0/caught; [ $s = INT ] || exit 5" $s; done
    touch "$0/started"; while :; do sleep 0.05; done'
start() {
    rm -f "$work/started" "$work/caught"
    "$ctl" run "$@" >"$work/out" 2>"$work/err" &
    pid=$!
    until_true '[ -e "$work/started" ]'
}
ended() {
    local status=0
    wait "$pid" || status=$?
    [ "$status" = "$1" ] || fail "$2: status $status, not $1"
    nothing_left
}
for signal in TERM HUP; do
    start bash -c "$command" "$work"
    kill -$signal "$pid"
    ended 5 "SIG$signal"
    [ "$(cat "$work/caught")" = $signal ] || fail "SIG$signal is not passed on: $(cat "$work/caught")"
done
start sh -c 'touch "$0/started"; exec sleep 1000' "$work"
kill -TERM "$pid"
ended 143 "a command that SIGTERM kills"

# A terminal's Ctrl-C goes to the whole foreground group: poisectl must not add a second one.
if command -v python3 >/dev/null; then
    rm -f "$work/started" "$work/caught"
    cat >"$work/terminal.py" <<'END'
import os, pty, signal, sys, time
work, ctl, command = sys.argv[1:]
def until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)  # between two looks
    sys.exit("never came")
pid, terminal = pty.fork()
if pid == 0:
    os.execv(ctl, [ctl, "run", "bash", "-c", command, work])
until(lambda: os.path.exists(work + "/started"))
os.write(terminal, b"\x03")
until(lambda: os.path.exists(work + "/caught"))
os.kill(pid, signal.SIGTERM)  # passed on after whatever the Ctrl-C gave
status = os.waitpid(pid, 0)[1]
sys.exit(0 if os.waitstatus_to_exitcode(status) == 5 else f"status {status}")
END
    python3 "$work/terminal.py" "$work" "$ctl" "$command" 2>"$work/err" || fail "in a terminal"
    [ "$(tr '\n' ' ' <"$work/caught")" = "INT TERM " ] || fail "Ctrl-C: $(cat "$work/caught")"
    nothing_left
fi

# 5. poised dies: said at once, the command goes on to its own end.
start sh -c 'touch "$0/started"; while [ ! -e "$0/go" ]; do sleep 0.05; done; exit 6' "$work"
kill -9 "$(processes_with "$TMPDIR/poise-run-" "poised --socket-dir")"
until_true 'grep -q "poised (pid .*) was killed by signal 9 (Killed) while the command runs" "$work/err"'
touch "$work/go"
ended 6 "after poised's death"

# 6. kill -9 of poisectl: poised dies, the folder goes, the command is told.
start bash -c "$command" "$work"
kill -9 "$pid"
ended 137 "kill -9"
until_true '[ "$(cat "$work/caught" 2>/dev/null)" = TERM ]'
