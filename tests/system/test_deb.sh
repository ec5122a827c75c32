#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages: they build, have what they should, install into a throwaway copy of this machine (an overlay that
# only this test sees), serve trainers of several users as the unit would, run the demo, and leave nothing when purged.
# Without the right to mount they are unpacked, and the demo runs from there.
set -eu
fail() { echo "$*" >&2; exit 1; }

# -------------------------------------------------------------------------------- inside of the throwaway root, as root
inside() {
    debs=$1
    export TMPDIR=/tmp HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin
    unset POISE_DATA POISE_SOCKET_DIR LD_LIBRARY_PATH PKG_CONFIG_PATH
    cd /
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # this machine's policy: start nothing
    chmod +x /usr/sbin/policy-rc.d
    log=/tmp/dpkg.log
    for time in first again; do # the second one is an upgrade
        dpkg -i "$debs"/{poise,libpoise0,libpoise-dev,python3-poise}_*.deb >$log 2>&1 ||
            fail "install, $time: $(cat $log)"
    done
    [ "$(dpkg-query -W -f '${db:Status-Status} ' poise libpoise0 libpoise-dev python3-poise)" = \
        "installed installed installed installed " ]

    grep -q '^poise:.*:/usr/sbin/nologin$' /etc/passwd || fail "no user poise"
    [ -e /etc/systemd/system/multi-user.target.wants/poised.service ] || fail "poised.service is not enabled"
    if command -v systemd-tmpfiles >/dev/null; then
        [ "$(stat -c '%U %a' /run/poise)" = "poise 755" ] || fail "/run/poise: $(stat -c '%U %a' /run/poise)"
    fi

    # As the unit runs it; trainers of two users reach it.
    [ -d /run/poise ] || install -d -o poise -g poise /run/poise
    mkfifo -m 666 /tmp/ready
    setpriv --reuid=poise --regid=poise --clear-groups --no-new-privs poised --ready-fd 3 3>/tmp/ready \
        2>/tmp/poised.log &
    poised=$!
    read -r -t 30 </tmp/ready || fail "poised does not get ready: $(cat /tmp/poised.log)"
    trainers=()
    for user in daemon games; do
        for rank in 0 1; do
            runuser -u $user -- /usr/libexec/poise/trainer --rank $rank --ranks 2 --steps 3 --per-rank 2 --job deb \
                >/tmp/$user-$rank.log 2>&1 &
            trainers+=($!)
        done
    done
    for pid in "${trainers[@]}"; do
        wait "$pid" || fail "a trainer fails: $(cat /tmp/{daemon,games}-*.log /tmp/poised.log)"
    done
    runuser -u games -- poisectl status >/tmp/status || fail "no status for others"
    kill $poised
    wait $poised || fail "poised ends with status $?: $(cat /tmp/poised.log)"

    (cd /usr && runuser -u daemon -- poisectl demo --ranks 2 --steps 3 --per-rank 2) >/tmp/demo.log 2>&1 ||
        fail "demo: $(cat /tmp/demo.log)"
    grep -q ' 0 lost, 0 doubled, 0 corrupt' /tmp/demo.log || fail "demo: $(cat /tmp/demo.log)"
    printf '#include <poise.h>\nint main(void) { return !poise_version(); }\n' >/tmp/t.c
    # shellcheck disable=SC2046
    cc -o /tmp/t /tmp/t.c $(pkg-config --cflags --libs poise) && /tmp/t || fail "no program can be built"

    (cd /tmp && /usr/bin/python3 -c 'import poise; assert poise.presets(); print(poise.__file__)') >/tmp/python.log 2>&1 ||
        fail "python3-poise: $(cat /tmp/python.log)"
    grep -qx /usr/lib/python3/dist-packages/poise/__init__.py /tmp/python.log ||
        fail "python3-poise: $(cat /tmp/python.log)"

    dpkg -r poise libpoise0 libpoise-dev python3-poise >$log 2>&1 || fail "remove: $(cat $log)"
    [ -e /etc/poise/poised.conf ] || fail "removing takes the administrator's configuration"
    ! command -v poised >/dev/null || fail "poised is still there"
    dpkg -P poise libpoise0 libpoise-dev python3-poise >$log 2>&1 || fail "purge: $(cat $log)"
    ! grep '^poise:' /etc/passwd /etc/group /etc/shadow || fail "purging leaves the user"
    [ ! -e /run/poise ] || fail "purging leaves /run/poise"
}
if [ "${1:-}" = inside ]; then
    inside "$2"
    exit
fi

# -------------------------------------------------------------------------------------- in a mount namespace of its own
overlay() {
    work=$1
    mkdir "$work/layers"
    mount -t tmpfs none "$work/layers"
    mkdir "$work/layers/"{upper,work,root}
    root=$work/layers/root
    mount -t overlay none -o "lowerdir=/,upperdir=$work/layers/upper,workdir=$work/layers/work" "$root" 2>/dev/null ||
        exit 76
    for folder in proc dev sys; do mount --rbind /$folder "$root/$folder"; done
    mount -t tmpfs none "$root/run"
    mount -t tmpfs -o mode=1777 none "$root/tmp"
    cp -r "$work/deb" "$root/tmp/deb"
    cp "$0" "$root/tmp/test"
    chroot "$root" /bin/bash /tmp/test inside /tmp/deb
    # 0/0 character devices are the overlay's own signs of what was removed.
    left=$(find "$work/layers/upper" -iname '*poise*' ! -type c)
    [ -z "$left" ] || fail "purging leaves $left"
}
if [ "${1:-}" = overlay ]; then
    overlay "$2"
    exit
fi

case "$BUILD" in *san-*) echo "packages have no sanitizers: tested in the plain build"; exit 77 ;; esac
for tool in dh dpkg-buildpackage; do
    command -v $tool >/dev/null || { echo "$tool is missing (.ci/setup debhelper)"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory SETUP=0 BUILD="$work" deb >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }

if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error "$work"/deb/*.changes >"$work/lintian" 2>&1 || fail "$(cat "$work/lintian")"
fi
has() { # PACKAGE FILE ...
    local package=$1
    shift
    dpkg-deb -c "$work/deb/${package}_"*.deb | awk '{ print $6 }' >"$work/list"
    for file; do grep -qx "\./$file" "$work/list" || fail "$package has no $file"; done
}
lib=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
has poise usr/bin/poised usr/bin/poisectl usr/libexec/poise/trainer usr/share/poise/image_text.csv \
    etc/poise/poised.conf usr/lib/sysusers.d/poise.conf usr/lib/tmpfiles.d/poise.conf \
    usr/share/bash-completion/completions/poisectl \
    usr/share/man/man1/poisectl.1.gz usr/share/man/man5/poised.conf.5.gz usr/share/man/man8/poised.8.gz
grep -q 'lib/systemd/system/poised\.service$' "$work/list" || fail "poise has no unit"
has libpoise0 "$lib/libpoise.so.0"
has libpoise-dev usr/include/poise.h "$lib/libpoise.so" "$lib/libpoise.a" "$lib/pkgconfig/poise.pc" \
    usr/share/man/man3/poise.3.gz usr/share/man/man3/poise_open.3.gz
has python3-poise usr/lib/python3/dist-packages/poise/{__init__.py,group.py,py.typed}

if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
    command -v systemd-sysusers >/dev/null || { echo "systemd-sysusers is missing (package systemd)"; exit 77; }
    status=0
    unshare -m --propagation private /bin/bash "$0" overlay "$work" || status=$?
    [ $status = 76 ] || exit $status
fi
echo "no overlay may be mounted: packages are unpacked, not installed"
for deb in "$work"/deb/{poise,libpoise0}_*.deb; do dpkg-deb -x "$deb" "$work/unpacked"; done
cd "$work"
export LD_LIBRARY_PATH="$work/unpacked/$lib"
env -u POISE_DATA "$work/unpacked/usr/bin/poisectl" demo --ranks 2 --steps 3 --per-rank 2
