#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# poisectl demo, small: the object has the promised keys and every sample comes once, unchanged; nothing is left behind
# when it ends, is interrupted or killed, or loses a trainer, and then it says which one.
set -eu
demo="$BUILD/poisectl demo --data tests/data/image_text.csv"
work=$(mktemp -d)
export TMPDIR="$work/tmp"
mkdir "$TMPDIR"
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    [ -e "$work/err" ] && tail -n 20 "$work/err"
    exit 1
}

. tests/system/lib.sh

# All processes of a demo have its directory, which lies in $TMPDIR, in their arguments.
processes() { processes_with "$TMPDIR/poise-demo-" "${1:-}"; }
nothing_left() {
    until_true '[ -z "$(processes)" ]'
    until_true '[ -z "$(ls -A "$TMPDIR")" ]'
}

# 1. It works.
$demo --ranks 4 --steps 3 --per-rank 4 --json >"$work/out" 2>"$work/err" || fail "status $?: $(cat "$work/out")"
jq -e '
    .ranks == 4 and .steps == 3 and .samples_in == 192 and .samples_out == 192
    and .lost == 0 and .doubled == 0 and .corrupt == 0
    and ([.runs[].mode] == ["off", "shadow", "on", "on"])
    and ([.runs[].algorithm][2] | startswith("post_"))
    and (.runs | all(
        keys ==
            ["algorithm", "bytes_moved_fraction", "exposed_wait_us", "ideal_step_time_ms", "microbatch_imbalance", "mode",
             "predicted_speedup", "speedup", "step_imbalance", "step_time_ms"]
        and .exposed_wait_us.p50 <= .exposed_wait_us.p99 and .step_time_ms > 0 and .ideal_step_time_ms > 0
        and .step_imbalance >= 1 and .microbatch_imbalance >= .step_imbalance - 1e-5))
    and .runs[0].speedup == 1 and .runs[0].bytes_moved_fraction == 0 and .runs[1].bytes_moved_fraction == 0
    and .runs[1].step_imbalance == .runs[0].step_imbalance
    and .runs[1].predicted_speedup == .runs[3].predicted_speedup
    and .runs[3].step_imbalance <= .runs[0].step_imbalance and .runs[3].predicted_speedup >= 1' "$work/out" >/dev/null ||
    fail "$(cat "$work/out")"
nothing_left

# 2. The table, samples without an image, more samples asked for than the file has, sizes that no processor takes.
{
    echo 'width,height,answer_tokens'
    for i in 1 2 3 4 5 6; do printf '%s\n' "$((i * 100)),$((i * 90)),$i"; done
    printf ',,50\r\n20,400,1\n9000,30,1\nwide,30,1\n"640","480",7\n'
} >"$work/sizes.csv"
"$BUILD/poisectl" demo --data "$work/sizes.csv" --ranks 2 --steps 4 --per-rank 3 --micro-batch 2 --compute-ms 10 \
    --truth exact --algorithm identity >"$work/out" 2>"$work/err" || fail "status $?"
grep -q "8 rows used, left out: 1 with a side under 28 pixels, 1 with a ratio above 200, 1 without" "$work/out" ||
    fail "$(cat "$work/out")"
grep -q "samples: 96 in, 96 out, 0 lost, 0 doubled, 0 corrupt" "$work/out" || fail "$(cat "$work/out")"
nothing_left

# 3. Bad input: status 2, a reason, nothing started.
refused() {
    local what=$1 status=0
    shift
    "$BUILD/poisectl" demo "$@" >"$work/out" 2>"$work/err" || status=$?
    { [ "$status" = 2 ] && [ ! -s "$work/out" ] && grep -qF -- "$what" "$work/err"; } || fail "status $status, not: $what"
}
printf 'a,b\n1,2\n' >"$work/columns.csv"
: >"$work/empty.csv"
head -c 3000 /dev/zero >"$work/binary.csv"
printf 'width,height\n20,20\n' >"$work/small.csv"
refused "No such file" --data "$work/none.csv"
refused "width and height" --data "$work/columns.csv"
refused "empty.csv" --data "$work/empty.csv"
refused "binary.csv" --data "$work/binary.csv"
refused "directory" --data "$work"
refused "1 have a side under 28 pixels" --data "$work/small.csv"
refused "greedy" --algorithm magic
refused "noisy or exact" --truth maybe
refused "from 1 to" --ranks 0
refused "from 1 to" --steps 1.5
refused "needs a value" --steps
refused "--per-rank" --perrank 3
refused "one word too many" now
nothing_left

start() {
    $demo --ranks 4 --steps 100000 --per-rank 2 --compute-ms 20 >"$work/out" 2>"$work/err" &
    pid=$!
    until_true '[ "$(processes | wc -l)" -ge 5 ]' # poised and four trainers
}
ended() {
    status=0
    wait "$pid" 2>/dev/null || status=$?
    [ "$status" != 0 ] || fail "$1: status 0"
    [ ! -s "$work/out" ] || fail "$1: half an answer: $(cat "$work/out")"
    nothing_left
}

# 4. A trainer is killed: the demo ends, names it, and leaves nothing.
start
victim=$(processes "--rank 2 ")
kill -9 "$victim"
ended "killed trainer"
grep -q "rank 2 (pid $victim) was killed by signal 9" "$work/err" || fail "does not name rank 2 (pid $victim)"

# 5. poised is killed.
start
kill -9 "$(processes "poised --socket-dir")"
ended "killed poised"
grep -q "poised (pid .*) was killed by signal 9" "$work/err" || fail "does not name poised"

# 6. Ctrl-C, and kill -9 of poisectl itself.
for signal in INT TERM KILL; do
    start
    kill -$signal "$pid"
    ended "SIG$signal"
    [ "$status" = $((128 + $(kill -l $signal))) ] || fail "SIG$signal: status $status"
done
