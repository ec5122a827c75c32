#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A staged install is complete: a C and a C++ program build against it with pkg-config alone, with the shared and the
# static library, run, and agree on the version; names of their own never clash with the library's. poisectl demo runs
# from the staged tree, moved elsewhere, called from another folder; the Python package works from there. make uninstall
# leaves no file.
set -eu
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
fail() { echo "$*" >&2; exit 1; }
san=
case "$BUILD" in *san-*) san=$(basename "$BUILD" | sed 's/^san-//; s/-/,/g') ;; esac
run_make() {
    make --no-print-directory SETUP=0 ${san:+SAN="$san"} "$@" DESTDIR="$stage" PREFIX=/opt/poise BUILD="$BUILD" >"$stage/log" 2>&1 ||
        { cat "$stage/log"; exit 1; }
}
run_make install

cat >"$stage/t.c" <<'C'
#include <poise.h>
#include <stdio.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
/* Names that the library has inside as well. */
int wire_encode(void);
int err_set(void);
int grid_check(void);
int wire_encode(void) { return 1; }
int err_set(void) { return 2; }
int grid_check(void) { return 3; }
#ifdef __cplusplus
}
#endif
int main(void)
{
    struct poise_options opt = { sizeof(opt) };
    struct poise_err err;
    struct poise *p;
    opt.job = "install";
    opt.socket_dir = "/nonexistent";
    opt.daemon_timeout_ms = 1;
    opt.n_ranks = 1;
    opt.cost = "length";
    if (poise_open(&opt, &p, &err) == 0 || !strstr(err.text, "/nonexistent")) {
        fprintf(stderr, "expected an error that names the socket's folder, got: %s\n", err.text);
        return 1;
    }
    printf("%s\n", poise_version());
    return strcmp(poise_version(), POISE_VERSION) != 0 || wire_encode() + err_set() + grid_check() != 6;
}
C
cp "$stage/t.c" "$stage/t.cc"
export PKG_CONFIG_PATH="$stage/opt/poise/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$stage"
static=$(pkg-config --static --cflags --libs poise)
for compiler in "cc -xc $stage/t.c" "c++ -xc++ $stage/t.cc"; do
    # shellcheck disable=SC2046,SC2086
    $compiler -xnone -Wall -Werror ${san:+-fsanitize=$san} $(pkg-config --cflags --libs poise) -o "$stage/t"
    LD_LIBRARY_PATH="$stage/opt/poise/lib" "$stage/t"
    # The linker takes libpoise.so where both are there: name the archive.
    # shellcheck disable=SC2086
    $compiler -xnone -Wall -Werror ${san:+-fsanitize=$san} ${static/-lpoise/-l:libpoise.a} -o "$stage/t"
    ! readelf -d "$stage/t" | grep -q 'NEEDED.*libpoise' || fail "--static still needs libpoise.so"
    "$stage/t"
done

# The archive has every public name and no other.
functions=$(sed -n 's/^[a-z].*[ *]\(poise_[a-z_]*\)(.*/\1/p' include/poise.h | sort)
archive=$(nm -g --defined-only "$stage/opt/poise/lib/libpoise.a" |
    awk 'NF == 3 && $3 !~ /^__(odr_)?asan/ { print $3 }' | sort)
[ "$archive" = "$functions" ] || fail "libpoise.a: $(diff <(echo "$functions") <(echo "$archive"))"
shared=$(nm -D --defined-only "$stage/opt/poise/lib/libpoise.so" |
    awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' | sort)
[ "$shared" = "$functions" ] || fail "libpoise.so: $(diff <(echo "$functions") <(echo "$shared"))"

# Everything that the demo needs is found from where poisectl is.
mv "$stage/opt/poise" "$stage/moved"
mkdir "$stage/cwd"
(cd "$stage/cwd" && env -u POISE_DATA -u LD_LIBRARY_PATH "$stage/moved/bin/poisectl" demo --ranks 2 --steps 3 \
    --per-rank 2 --json) >"$stage/demo.json" 2>"$stage/log" || fail "the installed demo: $(cat "$stage/log")"
jq -e '.samples_in == .samples_out and .lost == 0 and .corrupt == 0' "$stage/demo.json" >/dev/null ||
    fail "$(cat "$stage/demo.json")"

# The Python package finds the library beside itself. Under AddressSanitizer Python needs its runtime first.
runtime=$(case "$san" in *address*) cc -print-file-name=libasan.so ;; esac)
(cd "$stage/cwd" && env -u POISE_LIBRARY -u LD_LIBRARY_PATH ${runtime:+LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0} \
    python3 -c '
import glob, sys
sys.path[:0] = glob.glob(sys.argv[1] + "/moved/lib/python3*/dist-packages")
import poise
from poise import _c
assert sorted(poise.balanced_partitions([3, 2, 1], 2)) == [[0], [1, 2]]
for path in (poise.__file__, _c.path_of(_c.library())):
    assert path.startswith(sys.argv[1] + "/moved/"), path' "$stage") >"$stage/log" 2>&1 ||
    fail "the installed Python package: $(cat "$stage/log")"
mv "$stage/moved" "$stage/opt/poise"

for page in man1/poisectl.1 man3/poise.3 man3/poise_open.3 man5/poised.conf.5 man8/poised.8; do
    [ -s "$stage/opt/poise/share/man/$page" ] || fail "no $page"
done
grep -q '^complete .* poisectl$' "$stage/opt/poise/share/bash-completion/completions/poisectl" || fail "no completion"
grep -q '^ExecStart=/opt/poise/bin/poised' "$stage/opt/poise/lib/systemd/system/poised.service" ||
    fail "the unit starts another poised"

run_make uninstall
left=$(find "$stage/opt" ! -type d -o -name 'poise*' ! -path "$stage/opt/poise")
[ -z "$left" ] || fail "uninstall leaves: $left"
