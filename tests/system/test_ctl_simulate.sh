#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# poisectl simulate: figures that hang together and agree with known ones; the same for the same seed; a report that is whole or
# not there; every bad input refused with status 2, one line on stderr that says what, and nothing on stdout.
set -eu
simulate="$BUILD/poisectl simulate"
images=tests/data/image_text.csv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
check() { # JSON-FILE what jq-expression
    jq -e "$3" "$1" >/dev/null || fail "$2: $(jq -c '{rows, limits, helps, recommendation}' "$1" | cut -c 1-3000)"
}

# ------------------------------------------------------------------------------------------------------------ real sizes
$simulate $images --ranks 8 --per-rank 8 --batches 20 --json >"$work/a"
check "$work/a" "keys" '.ranks == 8 and .per_rank == 8 and .batches == 20 and .seed == 1 and .count == "equal"
    and .cost.name == "qwen2.5-vl-7b" and .cost.default and (.cost.phases | map(.name)) == ["vision", "llm"]
    and (.recommendation.text | length > 20) and (.recommendation.algorithm | length > 0)'
check "$work/a" "rows" '[.rows[] | select(.error | not) |
    [.gap, .bytes_moved_fraction, .bytes_moved_floor, .imbalance_before, .imbalance_after, .plan_ms, .predicted_speedup] |
    all(type == "number" and . >= 0)] | length >= 4 and all'
check "$work/a" "every algorithm has a row" '[.rows[].algorithm] | contains(["identity", "greedy", "least_move",
    "post_global_balancing_greedy_without_pad", "post_mbs_balancing_greedy_without_pad"])'
check "$work/a" "arrival order is the same for all" '[.rows[] | select(.error | not) | .imbalance_before] | max - min < 1e-9'
check "$work/a" "known imbalance of these sizes" '.rows[0].imbalance_before | . > 1.35 and . < 1.75'
check "$work/a" "identity moves nothing" '.rows[] | select(.algorithm == "identity") | .bytes_moved_fraction == 0 and
    .imbalance_before == .imbalance_after and .predicted_speedup == 1'
check "$work/a" "never worse, never bigger, never emptier" '[.rows[] | select((.error | not) and
    (.algorithm | test("^post_|karmarkar") | not)) | .imbalance_after <= .imbalance_before + 1e-9 and
    .lacking_after <= .lacking_before and .largest_length_after.llm <= .largest_length_before.llm] | all'
check "$work/a" "the default balances" '.rows[] | select(.algorithm == "least_move") | .gap < 0.05 and .imbalance_after < 1.06
    and .predicted_speedup > 1.2 and .bytes_moved_fraction < 0.5'
check "$work/a" "rows left out are counted and named" '.data.rows == 14940 and .data.samples + .data.rows_left_out == 14940 and
    (.data.left_out | map(.count) | add) == .data.rows_left_out and (.data.left_out[0].reason | test("28 pixels")) and
    .data.left_out[0].lines[0] == 8397'
check "$work/a" "changes are simulated" '[.helps[].change] | contains(["accumulate_2x", "accumulate_4x", "max_pixels",
    "context_parallel_2", "count_free"])'
check "$work/a" "smaller images are faster" '.helps[] | select(.change == "max_pixels") | .step_time_ratio < 0.97'

# Tokens of images and text, as known for these sizes: 1.48 by length, 2.11 by its square, with 8 ranks of 8.
$simulate $images --cost length --algorithm identity --json >"$work/b"
check "$work/b" "by length" '.rows[0].imbalance_before | . > 1.40 and . < 1.62'
$simulate $images --cost length_squared --algorithm identity --json >"$work/b"
check "$work/b" "by squared length" '.rows[0].imbalance_before | . > 1.85 and . < 2.4'

# ----------------------------------------------------------------------------------------------- deterministic, and random
steady='del(.rows[].plan_ms)'
$simulate $images --ranks 8 --per-rank 8 --batches 20 --json | jq -S "$steady" >"$work/b"
jq -S "$steady" "$work/a" | cmp - "$work/b" || fail "the same seed gives another answer"
$simulate $images --ranks 8 --per-rank 8 --batches 20 --seed 2 --json | jq -S "$steady" >"$work/b"
jq -S "$steady | del(.seed)" "$work/a" | cmp -s - <(jq -S 'del(.seed)' "$work/b") && fail "another seed gives the same answer"

# ---------------------------------------------------------------------------------------------------- options and tables
$simulate $images --ranks 16 --per-rank 4 --micro-batch 2 --count free --nodes 2 --tolerance 0.1% --batches 5 \
    --algorithm least_move,identity --fixed-fraction 0 --max-pixels 640x28x28 --json >"$work/b"
check "$work/b" "options" '.micro_batch == 2 and .count == "free" and .nodes == 2 and .tolerance == 0.001 and
    .fixed_fraction == 0 and .max_pixels == 501760 and (.rows | map(.algorithm)) == ["least_move", "identity"]'
check "$work/b" "no fixed part: the speed-up is that of the imbalance" '.rows[0] |
    (.predicted_speedup - .imbalance_before / .imbalance_after | fabs) < 0.1'
check "$work/b" "nodes" '(.rows[0].bytes_between_nodes_fraction <= .rows[0].bytes_moved_fraction) and
    ([.helps[].change] | contains(["within_nodes"])) and ([.helps[].change] | contains(["count_free"]) | not)'
for objective in "microbatch" "pipeline --stages 4" "step"; do
    # shellcheck disable=SC2086
    $simulate $images --ranks 8 --per-rank 8 --micro-batch 2 --batches 5 --objective $objective --count bounded --json >"$work/b"
    check "$work/b" "objective $objective" '[.rows[] | select((.error | not) and (.algorithm | test("^post_|karmarkar") | not)) |
        .imbalance_after <= .imbalance_before + 1e-9 and .gap >= 0] | length > 1 and all'
done
$simulate $images --batches 5 >"$work/text"
grep -q 'Choose ' "$work/text" || fail "no recommendation"
grep -q '^least_move ' "$work/text" || fail "no row"
grep -q 'left out: 16 of 14940 rows' "$work/text" || fail "rows left out are not told"

# ------------------------------------------------------------------------------------------------------ files of all kinds
awk 'BEGIN { srand(7); print "id,tokens"; for (i = 0; i < 2000; i++) {
    n = sqrt(-2 * log(1 - rand())) * cos(6.2831853 * rand()); printf "%d,%d\n", i, exp(6.5 + n) + 1 } }' >"$work/lengths.csv"
$simulate "$work/lengths.csv" --columns length=tokens --ranks 16 --per-rank 32 --count free --batches 10 --json >"$work/b"
check "$work/b" "lengths" '.cost.name == "length" and .cost.default and
    (.rows[] | select(.algorithm == "least_move") | .gap < 0.02 and .imbalance_before > 1.2)'
$simulate "$work/lengths.csv" --columns length=tokens --cost 12,3,100,3 --algorithm greedy --batches 3 --json >"$work/b"
check "$work/b" "coefficients" '.cost.phases == [{name: "length", unit: "units of length", linear: 12, quadratic: 3, constant: 100,
    passes: 3}]'

# Quotes, CRLF, a byte order mark, empty and impossible cells.
printf '\xef\xbb\xbf"name","width",height,"text_tokens"\r\n"a, ""b""",640,480,5\r\n"two\nlines",800,600,\r\nc,,,9\r\nd,NaN,480,1\r\n' >"$work/odd.csv"
printf 'e,-3,480,1\r\nf,640\r\ng,20,480,1\r\nh,1e99,480,1\r\n' >>"$work/odd.csv"
$simulate "$work/odd.csv" --ranks 2 --per-rank 2 --batches 3 --algorithm identity,greedy --json >"$work/b"
check "$work/b" "odd cells" '.data.samples == 3 and .data.rows_left_out == 5 and ([.data.left_out[].reason] | tostring |
    test("not finite") and test("negative") and test("fewer fields") and test("28 pixels") and test("too large"))
    and .data.left_out[0].lines == [6]'

# Samples of several images; one in 40 is larger than a rank's share.
awk 'BEGIN { print "text_tokens,image_sizes"; for (i = 0; i < 400; i++) { printf "%d,", 50 + i % 90
    n = i % 40 == 0 ? 60 : 1 + i % 3; for (k = 0; k < n; k++) printf "%s%dx%d", k ? ";" : "", 300 + 10 * (i % 50), 400
    print "" } }' >"$work/docs.csv"
$simulate "$work/docs.csv" --ranks 16 --per-rank 4 --batches 10 --json >"$work/b"
check "$work/b" "one sample larger than a share" '.limits.batches_with_larger_sample >= 5 and .limits.larger_sample_mean > 1 and
    .limits.larger_sample_most >= .limits.larger_sample_mean and (.recommendation.text | test("one sample alone"))'
check "$work/b" "what helps then" '[.helps[] | {key: .change, value: .step_time_ratio}] | from_entries |
    .accumulate_4x < 0.9 and .accumulate_4x < .accumulate_2x and .context_parallel_2 < 0.95 and .image_exchange < 1'

# -------------------------------------------------------------------------------------------------------------- the report
mkdir "$work/r"
cp $images "$work/<b>&'x.csv"
$simulate "$work/<b>&'x.csv" --batches 5 --report "$work/r/report.html" >/dev/null 2>&1 || fail "report"
[ "$(ls "$work/r")" = report.html ] || fail "beside the report lies $(ls "$work/r")"
[ "$(grep -c '<svg' "$work/r/report.html")" = 3 ] || fail "three pictures"
[ "$(tail -n 1 "$work/r/report.html")" = '</html>' ] || fail "the report is cut"
grep -qF '&lt;b&gt;&amp;&#39;x.csv' "$work/r/report.html" || fail "the path is not escaped"
! grep -qE '<b>&|<script|src=|href=|url\(|https?:' "$work/r/report.html" || fail "the report refers to something else"
! grep -qE 'nan|inf[^o]' <(sed 's/<style>.*<\/style>//; s/<text[^>]*>[^<]*//g' "$work/r/report.html" | grep -oE "[xy12]*='[^']*'") ||
    fail "a coordinate is not a number"
# A disk that is full (here: a limit of 8 KB a file) leaves the older report alone and nothing beside it.
cp "$work/r/report.html" "$work/before"
status=0
(
    trap '' XFSZ
    ulimit -f 8
    exec $simulate $images --batches 2 --report "$work/r/report.html"
) >"$work/out" 2>"$work/err" || status=$?
[ $status = 1 ] && grep -q 'report.html cannot be written' "$work/err" || fail "full disk: status $status, $(cat "$work/err")"
cmp -s "$work/before" "$work/r/report.html" || fail "the older report is gone"
[ "$(ls "$work/r")" = report.html ] || fail "left behind: $(ls "$work/r")"
[ ! -s "$work/out" ] || fail "printed although the report failed"

# Memory that is not there is an error, and says for what. (Sanitizers need all of the address space.)
case "$BUILD" in
*san*) ;;
*)
    status=0
    (
        ulimit -v 400000
        exec $simulate $images --ranks 65536 --per-rank 512 --batches 1
    ) >"$work/out" 2>"$work/err" || status=$?
    [ $status = 1 ] && grep -q 'no memory for a global batch of 33554432 samples' "$work/err" && [ ! -s "$work/out" ] ||
        fail "no memory: status $status, $(cat "$work/err")"
    ;;
esac

# --------------------------------------------------------------------------------------------------------------- bad input
refuse() { # what-the-error-says arguments...
    says=$1
    shift
    status=0
    $simulate "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    [ $status = 2 ] || fail "$*: status $status: $(cat "$work/err")"
    [ ! -s "$work/out" ] || fail "$*: prints $(cat "$work/out")"
    [ "$(wc -l <"$work/err")" = 1 ] || fail "$*: says $(cat "$work/err")"
    grep -qE -- "$says" "$work/err" || fail "$*: says $(cat "$work/err")"
}
: >"$work/empty.csv"
printf 'length\n' >"$work/header.csv"
printf 'a,b\n1,2\n' >"$work/other.csv"
printf '640,480\n641,481\n' >"$work/noheader.csv"
printf 'length\n"1\n2\n' >"$work/quote.csv"
printf 'length\nx\n-1\n' >"$work/unusable.csv"
printf 'POISEREC\0\1\2\3' >"$work/run.rec"
printf 'PAR1\25\4\25' >"$work/x.parquet"
refuse "$work is a directory" "$work"
refuse "nowhere.csv cannot be opened: No such file" "$work/nowhere.csv"
refuse "empty.csv is empty" "$work/empty.csv"
refuse "header.csv has a header and no row" "$work/header.csv"
refuse "no columns that say sizes.*It has: a, b" "$work/other.csv"
refuse "has no header" "$work/noheader.csv"
refuse "line 2: a quote is opened and never closed" "$work/quote.csv"
refuse "none of its 2 rows can be used. Line 2: length is not a number" "$work/unusable.csv"
refuse "the record has 12 bytes" "$work/run.rec"
refuse "Parquet" "$work/x.parquet"
refuse "no column c. There are: a, b" "$work/other.csv" --columns length=c
refuse "nothing is called len. There are: length, width" "$work/other.csv" --columns len=a
refuse "none is called best. There are: .*least_move.*identity" $images --algorithm identity,best
refuse "no preset is called qwen9: there are .*qwen2.5-vl-7b" $images --cost qwen9
refuse "--cost 1,2: coefficients are" $images --cost 1,2
refuse "--cost 1,2,-3: coefficients are" $images --cost 1,2,-3
refuse "phase vision.* by 2|2 phases, the data only one length" "$work/lengths.csv" --columns length=tokens --cost qwen2.5-vl-7b
refuse "take --cost qwen2.5-vl-7b" $images --cost qwen2-audio-7b
refuse "every sample costs more than" $images --cost 18446744073709551615,1,1
refuse "--objective fast: there are step, microbatch and pipeline" $images --objective fast
refuse "--count some: there are equal, bounded and free" $images --count some
refuse "pipeline needs --stages" $images --objective pipeline
refuse "only --objective pipeline has stages" $images --stages 4
refuse "--tolerance 1: a fraction" $images --tolerance 1
refuse "--tolerance nan: a fraction" $images --tolerance nan
refuse "--fixed-fraction -1" $images --fixed-fraction=-1
refuse "--max-pixels 28x: a number" $images --max-pixels 28x
refuse "--max-pixels 99999999x99999999" $images --max-pixels 99999999x99999999
refuse "--ranks 0: must be a whole number" $images --ranks 0
refuse "--nodes 9: more than the 8 ranks" $images --nodes 9
refuse "at most" $images --ranks 1000000 --per-rank 1000000
refuse "--report $work is a directory" $images --report "$work"
refuse "its directory $work/no cannot be written" $images --report "$work/no/r.html"
refuse "give CSV"
refuse "one word too many" $images $images
refuse "there is no option --rank" $images --rank 8
[ ! -e "$work/no" ] || fail "a directory was made"
