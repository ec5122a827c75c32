#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A real systemd boots as process 1 of a container over an overlay of this machine's root; poise is installed into it as an
# operator would, and inside.sh plays what an operator, a user and bad luck do to it. Nothing of the machine changes: the
# overlay's upper folder is in memory, the container has no network, and the trap takes all of it down.
set -eu
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }
cd "$(dirname "$0")/../.."

[ "$(id -u)" = 0 ] || skip "only root may boot a container"
for tool in systemd-nspawn nsenter useradd ipcmk python3 jq curl; do
    command -v $tool >/dev/null || skip "$tool is missing (packages systemd-container, util-linux, passwd, python3)"
done
[ -x /lib/systemd/systemd ] && [ -x /lib/systemd/systemd-logind ] || skip "no systemd to boot (package systemd)"
ls /lib/*/security/pam_systemd.so >/dev/null 2>&1 || skip "no sessions (package libpam-systemd)"
case "$BUILD" in *san-*) skip "sanitizers: their runtime needs what the unit forbids" ;; esac

name=poise-test-$$ top=/tmp/poise-systemd.$$ leader= nspawn= cgroups=()
cleanup() {
    local i path
    [ -z "$leader" ] || kill -KILL "$leader" 2>/dev/null || true # process 1: the kernel ends all others of the container
    [ -z "$nspawn" ] || { kill "$nspawn" 2>/dev/null; wait "$nspawn" 2>/dev/null; } || true
    umount -R "$top/root" 2>/dev/null || umount -l "$top/root" 2>/dev/null || true
    umount "$top" 2>/dev/null || umount -l "$top" 2>/dev/null || true
    rmdir "$top" /run/systemd/nspawn/propagate/root "/run/systemd/nspawn/propagate/$name" \
        /run/systemd/nspawn/unix-export/"$name" 2>/dev/null || true
    rm -f "/run/systemd/nspawn/locks/$name"* "/run/systemd/nspawn/locks/inode-"* 2>/dev/null || true
    for path in ${cgroups[@]+"${cgroups[@]}"}; do
        for ((i = 0; i < 100; i++)); do # the kernel takes a moment to empty it
            find "$path" -depth -type d -exec rmdir {} + 2>/dev/null || true
            [ -d "$path" ] || break
            sleep 0.05
        done
    done
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# ------------------------------------------------------------------------------------------------------------ the root
mkdir "$top"
mount -t tmpfs -o mode=755 poise-test "$top" 2>/dev/null || skip "nothing may be mounted here"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay poise-test -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" "$top/root" 2>/dev/null ||
    skip "no overlay over this root may be mounted"
root=$top/root
tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
ln -sf /dev/null "$root/etc/systemd/system/timers.target" # no package lists, no cleaning
mkdir -p "$root/etc/systemd/logind.conf.d" "$root/var/log/journal"
printf '[Login]\nRemoveIPC=yes\nUserStopDelaySec=0\n' >"$root/etc/systemd/logind.conf.d/test.conf"
# What root has before poise comes; rows that systemd itself writes are left out in the end.
list() { (cd "$top/upper" && find . ! -type d | sort); }

# ------------------------------------------------------------------------------------------------------------- booting
in_cgroup() { # a group of its own, where one can be made: nspawn makes two in the one it runs in
    local base path
    for base in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
        [ -f "$base/cgroup.procs" ] && mkdir "$base/$name" 2>/dev/null && echo "$base/$name"
    done
    true
}
mapfile -t cgroups < <(in_cgroup)
(
    for path in ${cgroups[@]+"${cgroups[@]}"}; do echo $BASHPID >"$path/cgroup.procs" || true; done
    exec systemd-nspawn --quiet -D "$root" -M "$name" --boot --register=no --keep-unit --link-journal=no --console=pipe \
        --private-network --bind-ro="$PWD":/mnt systemd.unit=basic.target >"$top/console" 2>&1 </dev/null
) &
nspawn=$!
inside() { nsenter -t "$leader" -m -u -i -n -p -r -w "$@"; }
for ((i = 0; i < 600; i++)); do
    [ -d "/proc/$nspawn" ] || { cat "$top/console"; skip "systemd-nspawn does not boot a container here"; }
    leader= && read -r leader _ <"/proc/$nspawn/task/$nspawn/children" || true # no newline at its end
    state=$([ -z "$leader" ] || inside systemctl is-system-running 2>/dev/null || true)
    [ "$state" = running ] || [ "$state" = degraded ] && break
    sleep 0.05 # between two looks
done
[ "$state" = running ] || [ "$state" = degraded ] || { cat "$top/console"; fail "systemd did not come up: $state"; }
echo "systemd is up as process 1"

# --------------------------------------------------------------------------------------------------------- installing
list >"$top/before"
make --no-print-directory SETUP=0 BUILD="$BUILD" install DESTDIR="$root" PREFIX=/usr >"$top/log" 2>&1 ||
    { cat "$top/log"; fail "make install"; }
# Not a part of poise, so not in its folders.
mkdir -p "$root/opt/test"
cp tests/systemd/inside.sh "$root/opt/test/"
"${CC:-cc}" -shared -fPIC -O1 -D_GNU_SOURCE -o "$root/opt/test/slow_bind.so" tests/systemd/slow_bind.c

# ------------------------------------------------------------------------------------------------------------- playing
failed() {
    inside journalctl --no-pager -n 60 -o short-monotonic >&2 || true
    fail "$1"
}
part() {
    local start=$SECONDS
    inside bash /opt/test/inside.sh "$@" || failed "$1"
    echo "  ok: $1 ($((SECONDS - start)) s)"
}
part start
part ready
part users
part restart
part watchdog
# The memory controller is the container's own with cgroup 2; with version 1 it is readable only, and the test holds the limit.
if [ "$(inside systemctl show -P MemoryCurrent poised)" != "[not set]" ]; then
    part memory
elif path=/sys/fs/cgroup/memory/$name && mkdir "$path" 2>/dev/null; then
    cgroups+=("$path")
    inside bash /opt/test/inside.sh memory-begin || failed memory-begin
    # The pid as it is out here: the one poised in the container's process tree.
    space=$(readlink "/proc/$leader/ns/pid")
    pid=$(for p in $(pgrep -x poised); do [ "$(readlink "/proc/$p/ns/pid")" != "$space" ] || echo "$p"; done)
    [ -n "$pid" ] || fail "no poised in the container"
    echo 65536 >"$path/memory.limit_in_bytes"
    echo "$pid" >"$path/cgroup.procs"
    inside bash /opt/test/inside.sh memory-end || failed memory-end
    echo "  ok: memory (the limit of a cgroup of version 1)"
else
    echo "  left out: memory (no memory cgroup can be made here)"
fi
part logout
part journal
part configuration

# --------------------------------------------------------------------------------------------------------- uninstalling
inside systemctl disable --now poised >/dev/null 2>&1 || failed "disable"
inside make -C /mnt --no-print-directory SETUP=0 BUILD=/nonexistent PREFIX=/usr uninstall >"$top/log" 2>&1 ||
    { cat "$top/log"; fail "make uninstall"; }
inside systemctl daemon-reload
inside test ! -e /run/poise || fail "uninstall left /run/poise: $(inside ls -la /run/poise)"
rm -r "$root/opt/test"
# New files: of accounts (the users poise and alice, as sysusers and useradd write them), logs, and systemd's own state.
list | comm -13 "$top/before" - | grep -vE '^\./(etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|var/(log|lib/systemd|lib/private|mail|cache|tmp|spool)/)|^\./etc/ld.so.cache' |
    grep -vE '^\./etc/\.(pwd\.lock|updated)$' >"$top/left" || true
[ ! -s "$top/left" ] || fail "uninstall left $(cat "$top/left")"
find "$top/upper" -name '*pois*' | grep . && fail "uninstall left the above"
echo "  ok: uninstall"
