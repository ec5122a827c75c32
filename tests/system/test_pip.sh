#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `pip install ./client/python` in a fresh virtual environment: the package is complete, has the version of include/poise.h,
# plans with the library of the build, and goes without a trace. Skipped where pip cannot fetch setuptools.
set -eu
fail() { echo "$*" >&2; exit 1; }
case "$BUILD" in *san-*) echo "Python's own packaging gains nothing from sanitizers"; exit 77 ;; esac
python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "python3-venv is missing"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r client/python "$work/source" # a build leaves folders in its source
find "$work/source" -name __pycache__ -prune -exec rm -rf {} +
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check --retries 1)
# The backend that pip would fetch by itself into a place of its own: here once, so that no network is told from a failure.
"${pip[@]}" install -q 'setuptools>=70.1' >"$work/log" 2>&1 ||
    { echo "pip cannot fetch setuptools: $(tail -n 1 "$work/log")"; exit 77; }
"${pip[@]}" install -q --no-build-isolation "$work/source" >"$work/log" 2>&1 || fail "$(cat "$work/log")"

version=$(sed -n 's/^.define POISE_VERSION "\(.*\)"/\1/p' include/poise.h)
[ "$("${pip[@]}" show poise | sed -n 's/^Version: //p')" = "$version" ] || fail "$("${pip[@]}" show poise)"
[ -z "$("${pip[@]}" show poise | sed -n 's/^Requires: *//p')" ] || fail "it requires something"
place=$("$work/venv/bin/python" -c 'import poise, os; print(os.path.dirname(poise.__file__))')
diff <(cd client/python/poise && ls ./*.py py.typed) <(cd "$place" && ls ./*.py py.typed) || fail "files are missing"
cd "$work"
POISE_LIBRARY=$BUILD/libpoise.so venv/bin/python -W error -c '
import poise
assert sorted(poise.balanced_partitions([8, 7, 6, 5, 4], 2)) == [[0, 2], [1, 3, 4]]
assert "qwen2.5-vl-7b" in poise.presets()' || fail "the installed package does not work"
POISE_LIBRARY=/nonexistent venv/bin/python -c 'import poise; poise.presets()' 2>"$work/log" && fail "no library, no error"
grep -q 'LibraryNotFound.*/nonexistent' "$work/log" || fail "$(cat "$work/log")"
"${pip[@]}" uninstall -q -y poise
[ ! -e "$place" ] || fail "uninstalling leaves $(ls "$place")"
