#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# poisectl top --once beside real trainers, and live in a terminal of script(1): it redraws, follows the terminal's
# size, waits for a daemon that goes away, and q, Ctrl-C and SIGTERM give the terminal back as it was.
set -eu
ctl="$BUILD/poisectl"
. tests/system/lib.sh
working_folder
trap 'exec 3>&- || true; finish' EXIT
once() { "$ctl" top --once --socket-dir "$dir" >"$work/out" 2>"$work/err"; }

once && fail "without a daemon"
grep -q "no poised answers" "$work/err" || fail "$(cat "$work/err")"
mkdir "$dir"
"$BUILD/poised" --socket-dir "$dir" 2>"$work/poised.log" &
poised=$!
pids+=("$poised")
until_true once
grep -q "no group has come yet" "$work/out" || fail "no group"
status=0
"$ctl" top --socket-dir "$dir" </dev/null >"$work/out" 2>"$work/err" || status=$?
[ "$status" = 2 ] && grep -q -- "--once" "$work/err" || fail "live without a terminal: status $status"

for rank in 0 1; do
    "$BUILD/trainer" --rank $rank --ranks 2 --steps 10000000 --per-rank 4 --job run/7 --socket-dir "$dir" \
        2>>"$work/trainers" &
    pids+=($!)
done
until_true 'once && grep -q "; measured [12]\.[0-9]* in step" "$work/out" && grep -q "steps/s" "$work/out"'
for line in "run/7/dp (uid $(id -u)): running, mode on.*, 2 ranks x 1 on 1 nodes" \
    "  running: .*largest/mean rank cost" "  steps .* is open, [0-9.]* steps/s; [0-9]* planned, 0 errors" \
    "  imbalance   predicted [12]\.[0-9]* before, [12]\.[0-9]* after; measured [12]\.[0-9]* in step" \
    "  micro-batch largest length by phase: [0-9]* -> [0-9]*" "  moved  .*/s, .* of .* since the start" "  waits for " \
    "  exposed .* ms in the mean" "  memory .* of .* by 2 ranks here" "  verified  .* samples, 0 corrupt" \
    "  rank replica submitted"; do
    grep -q -- "^$line" "$work/out" || fail "no line $line"
done
[ "$(grep -cE '^ +[01] +0 +[0-9]+ +[0-9]+ (nothing|loader|plan|shuffle|trainer|rank)' "$work/out")" = 2 ] ||
    fail "two ranks"
if grep -q "$(printf '[\033\001]')" "$work/out"; then fail "control characters in a file"; fi

command -v script >/dev/null || { echo "script(1) is not here: only --once was tested"; exit 0; }

# Runs top in a terminal of 12 rows and 60 columns, whose screen goes to $work/screen and keys come by descriptor 3.
cat >"$work/live" <<EOF
tty >"$work/tty"
stty rows 12 cols 60
stty -g >"$work/before"
"$ctl" top --socket-dir "$dir" &
echo \$! >"$work/pid"
fg >/dev/null
echo \$? >"$work/status"
stty -g >"$work/after"
EOF
live() {
    rm -f "$work"/{keys,screen,status,after,pid}
    mkfifo "$work/keys"
    script -qfec "bash -m '$work/live'" "$work/screen" <"$work/keys" >/dev/null 2>&1 &
    terminal=$!
    exec 3>"$work/keys"
    until_true 'grep -qa "poised .* on " "$work/screen" 2>/dev/null'
}
frames() { tr -cd '\033' <"$work/screen" | wc -c; } # each has some of them
is_restored() { # name, the status that is wanted
    until_true '[ -s "$work/after" ]'
    exec 3>&-
    wait "$terminal" || true
    cmp -s "$work/before" "$work/after" || fail "$1: the terminal is another one: $(cat "$work/before" "$work/after")"
    [ "$(cat "$work/status")" = 0 ] || fail "$1: status $(cat "$work/status")"
    tail -c 200 "$work/screen" | grep -qaF "$(printf '\033[?25h\033[?1049l')" || fail "$1: the screen is not given back"
}
live
seen=$(frames)
until_true '[ "$(frames)" -gt $((seen + 20)) ]' # it looks again
grep -qa "steps/s" "$work/screen" || fail "no rate"
widest=$(sed 's/\x1b\[H/\n/g; s/\x1b\[[0-9;?]*[a-zA-Z]//g' "$work/screen" |
    tr -d '\r' | grep -av '^Script' | awk '{ if (length > n) n = length } END { print n }')
[ "$widest" -lt 60 ] || fail "a line of $widest columns in a terminal of 60"
stty -F "$(cat "$work/tty")" rows 40 cols 150
until_true 'grep -qa "rank replica submitted" "$work/screen"' # there is room for ranks now
printf q >&3
is_restored q

live
printf '\003' >&3
is_restored Ctrl-C

live
kill "$poised"
until_true 'grep -qa "looking again" "$work/screen"'
kill -TERM "$(cat "$work/pid")"
is_restored SIGTERM
