#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The same request must give the same plan whatever built the planner: two daemons of one job may come from different
# builds. Compares every compiler and optimisation level that is here.
set -eu
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
first=
n=0
for cc in gcc clang; do
    command -v $cc >/dev/null || continue
    for level in -O0 '-O3 -march=native'; do
        # shellcheck disable=SC2086
        $cc -std=gnu11 $level -I. -Iinclude -D_GNU_SOURCE -o "$dir/digest" tests/bench/plan_digest_main.c \
            tests/unit/plan_digest.c daemon/planner/*.c || { echo "$cc $level does not build"; exit 1; }
        "$dir/digest" >"$dir/out"
        n=$((n + 1))
        if [ -z "$first" ]; then
            first="$cc $level"
            cp "$dir/out" "$dir/first"
        elif ! diff "$dir/first" "$dir/out"; then
            echo "$cc $level plans differently from $first"
            exit 1
        fi
    done
done
[ $n -ge 2 ] || { echo "needs a compiler"; exit 77; }
echo "$n builds, one answer"
