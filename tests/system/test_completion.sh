#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bash completes every command and option that poisectl --help names, the values that it lists, files and folders: Tab
# is pressed on whole lines, as bash would.
set -eu
PATH=$BUILD:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. client/ctl/completion/poisectl.bash

fail() { echo "$*" >&2; exit 1; }
compopt() { :; } # bash refuses it outside of a real completion

tab() { # what Tab offers at the end of the words; "" is a word that is not begun
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _poisectl
    printf '%s\n' "${COMPREPLY[@]}"
}
offers() { # WORD, then the line
    local word=$1
    shift
    tab "$@" | grep -qxF -- "$word" || fail "$*<Tab> does not offer $word, but: $(tab "$@" | tr '\n' ' ')"
}
offers_only() {
    local words=$1
    shift
    [ "$(tab "$@" | sort | tr '\n' ' ')" = "$words " ] || fail "$*<Tab> offers: $(tab "$@" | tr '\n' ' '), not $words"
}

commands=$(poisectl --help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')
[ "$(wc -w <<<"$commands")" -ge 5 ] || fail "--help lists only: $commands"
for command in $commands; do
    offers "$command" poisectl ""
    offers "$command" poisectl help ""
    options=$(poisectl "$command" --help | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p')
    [ -n "$options" ] || fail "$command --help lists no options"
    for option in $options; do
        offers "$option" poisectl "$command" --
        offers "$option" poisectl "$command" "${option%?}"
    done
done
offers_only "simulate status" poisectl s

offers_only "exact noisy" poisectl demo --truth ""
offers_only exact poisectl demo --ranks 4 --truth e
offers_only "exact noisy" poisectl demo --truth =
offers_only exact poisectl demo --truth = e
offers_only "bounded equal free" poisectl simulate --count ""
offers_only "microbatch pipeline step" poisectl simulate x.csv --objective ""
for algorithm in least_move greedy identity post_mbs_balancing_greedy_without_pad; do
    offers "$algorithm" poisectl demo --algorithm ""
done
offers qwen2.5-vl-7b poisectl simulate --cost ""
offers all poisectl mode ""
offers_only "off on shadow" poisectl mode all ""
offers_only "off on" poisectl mode --socket-dir /nonexistent all o
offers_only "" poisectl demo --ranks ""

mkdir "$work/folder"
touch "$work/file.csv"
offers_only "$work/folder" poisectl status --socket-dir "$work/f"
offers_only "$work/file.csv $work/folder" poisectl simulate "$work/f"
offers "$work/file.csv" poisectl demo --data "$work/f"
offers_only "" poisectl nosuch ""
