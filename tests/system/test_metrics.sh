#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# /metrics of a real daemon with real trainers: every line is of the Prometheus text format, a family has its HELP and
# TYPE before it and is in one place, counters (and nothing else) end in _total, no series is there twice, job names are
# escaped, and values are those of /status. Where promtool is installed (Debian package prometheus) it says the same.
set -eu
. tests/system/lib.sh
working_folder
ask() { curl -sf --unix-socket "$dir/status.sock" "http://localhost$1"; }
parse() { # file: names what is wrong with it
    awk '
    function wrong(why) { print FILENAME ":" FNR ": " why ": " $0; bad = 1 }
    /^# HELP poise_[a-z_]+ .+\.$/ { if ($3 in help) wrong("a family twice"); help[$3] = 1; family = $3; next }
    /^# TYPE poise_[a-z_]+ (counter|gauge)$/ {
        if ($3 != family) wrong("TYPE of another family than HELP")
        if (($4 == "counter") != ($3 ~ /_total$/)) wrong("counters end in _total, others do not")
        type[$3] = $4
        next
    }
    /^poise_[a-z_]+({([a-z]+="([^"\\]|\\["\\n])*",?)*})? [-+.0-9e]+$/ {
        name = $0; sub(/[{ ].*/, "", name)
        series = $0; sub(/ [^ ]*$/, "", series)
        if (name != family || !(name in type)) wrong("not below its own HELP and TYPE")
        if (series in seen) wrong("a series twice")
        seen[series] = 1
        if ($NF + 0 < 0) wrong("less than nothing")
        next
    }
    { wrong("none of the format") }
    END { exit bad || FNR < 20 }' "$1" || fail "$1 is not right: $(cat "$1")"
}

mkdir "$dir"
"$BUILD/poised" --socket-dir "$dir" 2>"$work/poised.log" &
pids+=($!)
until_true 'ask /healthz >"$work/out"'
ask /metrics >"$work/empty"
parse "$work/empty"

job='a "quoted\job'
for rank in 0 1; do
    "$BUILD/trainer" --rank $rank --ranks 2 --steps 10000000 --per-rank 4 --job "$job" --socket-dir "$dir" \
        2>>"$work/trainers" &
    pids+=($!)
done
labels='job="a \\"quoted\\\\job",group="dp",uid="'$(id -u)'"'
value() { awk -v series="$1" 'index($0, series " ") == 1 { print $NF }' "$work/metrics"; }
until_true 'ask /metrics >"$work/metrics" && grep -qE "^poise_group_imbalance_measured\{.*\} [0-9]" "$work/metrics" &&
    [ "$(grep -c "^poise_rank_samples_delivered_total{.*} [1-9]" "$work/metrics")" = 2 ]'
parse "$work/metrics"
for rank in 0 1; do
    for name in steps_submitted_total arena_bytes budget_bytes samples_verified_total samples_delivered_total; do
        v=$(value "poise_rank_$name{$labels,rank=\"$rank\",replica=\"0\"}")
        awk -v v="$v" 'BEGIN { exit !(v > 0) }' || fail "$name of rank $rank is \"$v\": $(cat "$work/metrics")"
    done
    [ "$(value "poise_rank_samples_corrupt_total{$labels,rank=\"$rank\",replica=\"0\"}")" = 0 ] ||
        fail "corrupt samples"
    [ "$(grep -cE "^poise_rank_waiting\{.*rank=\"$rank\".*cause=\"(loader|plan|shuffle|trainer)\"\} [01]$" \
        "$work/metrics")" = 4 ] || fail "causes of rank $rank"
done
[ "$(value "poise_group_processes_joined{$labels}")" = 2 ] || fail "2 processes have joined"
for name in imbalance_before imbalance_after imbalance_measured; do
    awk -v v="$(value "poise_group_$name{$labels}")" 'BEGIN { exit !(v >= 1 && v <= 2) }' || fail "$name of two ranks"
done

# Counters only grow.
first=$(value "poise_group_steps_decided_total{$labels}")
until_true 'ask /metrics >"$work/metrics" && [ "$(value "poise_group_steps_decided_total{$labels}")" -gt "$first" ]'

if command -v promtool >/dev/null; then
    for file in "$work/empty" "$work/metrics"; do
        promtool check metrics <"$file" >"$work/said" 2>&1 && [ ! -s "$work/said" ] ||
            fail "promtool: $(cat "$work/said")"
    done
else
    echo "promtool (package prometheus) is not here: its check is skipped"
fi
[ ! -s "$work/trainers" ] || fail "trainers say: $(cat "$work/trainers")"
