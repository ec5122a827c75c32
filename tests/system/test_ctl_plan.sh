#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# poisectl plan: equals every recorded table of the reference's algorithms; keeps every sample; refuses every bad input
# with status 2, one line on stderr that says where, and nothing on stdout.
set -eu
plan="$BUILD/poisectl plan"
golden=tests/data/golden/reference_rank_tables.json
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}

n=$(jq length $golden)
[ "$n" -gt 40 ] || fail "only $n golden tables"
jq -c '.[] | {algorithm, lengths, micro_batch_size, image_encoder_dp}' $golden >"$work/requests"
jq -c '.[].rank_table' $golden >"$work/expected"
while read -r request; do
    echo "$request" | $plan | jq -c .rank_table
done <"$work/requests" >"$work/got"
cmp "$work/expected" "$work/got" || fail "rank tables differ from the reference's"

# Equal inputs give equal ids, the text's spaces and order of keys do not matter.
one=$(echo '{"lengths": [[9, 1, 2, 3], [1, 1, 2, 1]], "micro_batch_size": 2, "count": "free"}' | $plan)
two=$(echo '{"count":"free","micro_batch_size":2,"cost":null,"lengths":[[9,1,2,3],[1,1,2,1]]}' | $plan)
[ "$one" = "$two" ] || fail "equal requests, different answers"
[ "$(jq -r .plan_id <<<"$one" | grep -cE '^[0-9a-f]{32}$')" = 1 ] || fail "plan_id"

# Every sample once, in both tables alike; all ranks have the same number of micro-batches.
for request in \
    '{"lengths": [[100, 4], [4, 100]], "micro_batch_size": 1}' \
    '{"lengths": [[5], [1], [2], []]}' \
    '{"lengths": [[], []], "micro_batch_size": 2}' \
    '{"lengths": [[16, 4], []], "count": "free"}' \
    '{"lengths": [[50000, 1, 1, 1], [2, 7, 3, 4]], "num_microbatches": 2}' \
    '{"lengths": [[[100, 40], [50, 30]], [[900, 300], [0, 20]]], "cost": "qwen2.5-vl-7b", "micro_batch_size": 1}' \
    '{"lengths": [[8, 7, 6], [1, 2, 3]], "units": [[1, 1, 0], [5, 5, 5]], "bytes": [[1, 2, 3], [4, 5, 6]],
      "nodes": [0, 1], "speeds": [1000000, 900000], "caps": {"length_rank": ["none"], "samples_rank": null}, "objective": "step",
      "cost": [{"name": "x", "linear": 3, "passes": 3}], "tolerance_ppm": 1, "cut": "fixed", "count": "equal"}'; do
    echo "$request" | $plan >"$work/out" || fail "refused: $request"
    jq -e --argjson request "$request" '
        ([.rank_table[][]] | sort) ==
            ([$request.lengths | to_entries[] | .key as $r | .value | keys[] | [$r, .]] | sort)
        and (.rank_table == [.microbatches[] | [.[][]]])
        and ([.microbatches[] | length] | unique | length == 1)
        and (.quality.objective_after <= .quality.objective_before)' "$work/out" >/dev/null ||
        fail "$request gives $(cat "$work/out")"
done

# 100,4 ; 4,100 with micro-batch 1: nothing moves and nothing is worse (the reference makes 20,000 of it).
echo '{"lengths": [[100, 4], [4, 100]], "micro_batch_size": 1}' | $plan |
    jq -e '.quality.rank_max_after == 10016 and .quality.bytes_moved == 0' >/dev/null || fail "100,4;4,100"

refused() { # request, what stderr must say
    local status=0
    printf '%s' "$1" | $plan >"$work/out" 2>"$work/err" || status=$?
    [ "$status" = 2 ] || fail "status $status: $1: $(cat "$work/err")"
    [ -s "$work/out" ] && fail "something on stdout: $1"
    [ "$(wc -l <"$work/err")" = 1 ] || fail "not one line: $1: $(cat "$work/err")"
    grep -qF -- "$2" "$work/err" || fail "$1: says $(cat "$work/err"), not $2"
}
refused '' "not JSON"
refused '{"lengths": [[1]' "not JSON"
refused '{"lengths": [[1]]} more' "not JSON"
refused '[[1]]' "must be a JSON object"
refused '{}' '"lengths" is missing'
refused '{"lengths": null}' '"lengths" is missing'
refused '{"lengths": 3}' '"lengths" must be a list'
refused '{"lengths": []}' "at least one"
refused '{"lengths": [1, 2]}' "lengths[0] must be a list"
refused '{"lengths": [[1], [2, -3]]}' "lengths[1][1] is -3"
refused '{"lengths": [[1], [2, 3.5]]}' "lengths[1][1] is a number with a fraction"
refused '{"lengths": [[1], [2, NaN]]}' "lengths[1][1]"
refused '{"lengths": [[1], [2, "3"]]}' "lengths[1][1] is a text"
refused '{"lengths": [[1], [null]]}' "lengths[1][0] is null"
refused '{"lengths": [[1], [99999999999999999999]]}' "lengths[1][0]"
refused '{"lengths": [[1, 9223372036854775807]]}' "rank 0"
refused '{"lengths": [[1, [2, 3]]]}' "lengths[0][1]"
refused '{"lengths": [[[1, 2], [3]]], "cost": "qwen2.5-vl-7b"}' "lengths[0][1] must be a list of 2"
refused '{"lengths": [[[1, 2]]]}' "cost"
refused '{"lengths": [[1]], "cost": "qwen2.5-vl-7b"}' "phases"
refused '{"lengths": [[1]], "cost": "gpt-9"}' "length_squared"
refused '{"lengths": [[1]], "cost": [{"slope": 2}]}' "linear, quadratic"
refused '{"lengths": [[1]], "cost": [{"linear": -2}]}' "cost[0].linear is -2"
refused '{"lengths": [[1]], "algorithm": "magic"}' "post_mbs_balancing_greedy_without_pad"
refused '{"lengths": [[1]], "algorithm": 7}' '"algorithm" must be a text'
refused '{"lengths": [[1]], "objective": "fast"}' "step, microbatch, pipeline"
refused '{"lengths": [[1]], "count": "most"}' "equal, bounded, free"
refused '{"lengths": [[1]], "micro_batch_size": 0}' '"micro_batch_size" is 0'
refused '{"lengths": [[1]], "micro_batch_size": 5000000000}' '"micro_batch_size" is 5000000000'
refused '{"lengths": [[1]], "microbatch_size": 1}' "micro_batch_size"
refused '{"lengths": [[1]], "lengths": [[2]]}' "duplicate"
refused '{"lengths": [[1], [2]], "bytes": [[1]]}' '"bytes" must be a list of 2'
refused '{"lengths": [[1], [2]], "bytes": [[1], [2, 3]]}' "bytes[1] must be a list of 1"
refused '{"lengths": [[1], [2]], "nodes": [0]}' '"nodes" must be a list of 2'
refused '{"lengths": [[1]], "caps": {"tokens": 1}}' "samples_rank"
refused '{"lengths": [[1]], "caps": {"length_rank": [1, 2]}}' "caps.length_rank must be a list of 1"
refused '{"lengths": [[1, 2, 3], [4]], "algorithm": "post_global_balancing_greedy_without_pad", "micro_batch_size": 3}' \
    "no multiple"
status=0
$plan </tmp >"$work/out" 2>"$work/err" || status=$?
{ [ "$status" = 2 ] && grep -q directory "$work/err"; } || fail "a directory as input"
status=0
echo '{"lengths": [[1]]}' | $plan >/dev/full 2>"$work/err" || status=$?
{ [ "$status" = 1 ] && grep -q "could not be written" "$work/err"; } || fail "a full disk"
status=0
$plan --pretty </dev/null >"$work/out" 2>"$work/err" || status=$?
{ [ "$status" = 2 ] && grep -q -- "--help" "$work/err"; } || fail "an unknown option"
echo "$n tables"
