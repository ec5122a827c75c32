#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The benchmarks run, quickly and without MPI, and write one JSON object with figures that can be; nothing is left behind.
# How good the figures are is not checked: that depends on what else the machine does.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
fail() {
    echo "FAILED: $*"
    exit 1
}

BENCH_JSON="$work/json" QUICK=1 MPI=0 TMPDIR="$work/tmp" tests/bench/run "" next planner shuffle tcp >"$work/out" 2>"$work/err" ||
    fail "status $?: $(cat "$work/out" "$work/err")"
jq -e '
    keys == ["next", "planner", "shuffle", "tcp"]
    and .next.pipeline_ms.p99 > 0 and .next.next_us.p50 > 0 and .next.next_us.p99 >= .next.next_us.p50
    and ([.planner.rows[] | select(.ms_median > 0) | .name] | sort ==
        ["1024x32 equal", "1024x32 free", "64x32 equal", "64x32 free"])
    and (.tcp.rows | length) == 12 and (.tcp.rows | all(.gb_s > 0 and .raw_gb_s > 0 and .ratio.median > 0))
    and .shuffle.mpi == false and (.shuffle.rows | length) == 2
    and (.shuffle.rows | all(.bytes_moved > 0 and .bytes > .bytes_moved and .memcpy_gbps > 0 and .step_gbps > 0
        and .shuffle_to_memcpy.median > 0 and (has("mpi_gbps") | not)))' "$work/json" >/dev/null || fail "$(cat "$work/json")"
grep -q "MPI_Alltoallv: skipped: not asked for" "$work/out" || fail "$(cat "$work/out")"
[ -z "$(ls -A "$work/tmp")" ] || fail "left behind: $(ls -A "$work/tmp")"

# A file that cannot be written is no half file.
if BENCH_JSON="$work/none/json" QUICK=1 MPI=0 TMPDIR="$work/tmp" tests/bench/run "--steps 8" next >"$work/out" 2>&1; then
    fail "wrote a file in a folder that is not there"
fi
