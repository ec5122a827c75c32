# SPDX-License-Identifier: Apache-2.0
# bash completion for poisectl. Commands, options and their values are read from poisectl's own --help and error
# messages when Tab is pressed (a few milliseconds), so they are always those of the installed one. Needs bash alone.
# shellcheck shell=bash

# The names in "...: there are a, b, c", as poisectl answers a wrong one.
_poisectl_there_are() {
    "$@" 2>&1 >/dev/null | sed -n 's/.*[Tt]here are:\{0,1\} //; s/,\( \|$\)/\n/gp'
}

# What may stand for one placeholder of a help text: $1 poisectl, $2 the command, $3 the option or "", $4 the
# placeholder, $5 its explanation. Prints a word a line.
_poisectl_values() {
    case $4 in
    *'|'*) tr '|' '\n' <<<"$4" ;;
    WORD) sed 's/^[^:]*: //; s/ (.*//; s/ or /, /; s/, /\n/g' <<<"$5" ;;
    NAME | A,B,...) [ "$3" = --algorithm ] && _poisectl_there_are "$1" demo --algorithm '?' </dev/null ;;
    COST) _poisectl_there_are "$1" plan <<<'{"lengths": [[1]], "cost": "?"}' | grep -v '=' ;;
    GROUP)
        echo all
        "$1" status 2>/dev/null </dev/null | sed -n 's|^\([^ ]*/[^ ]*\) (uid .*|\1|p'
        ;;
    esac
}

_poisectl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} before=$((COMP_CWORD - 1))
    local ctl=${COMP_WORDS[0]/#\~/$HOME} command=${COMP_WORDS[1]} help line name='' text='' words='' i n=0
    local option='^  (--[a-z0-9-]+)( ([^ ]+))?( +(.*))?$'

    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        words=$("$ctl" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$words help --help --version" -- "$cur")
        return
    fi
    if [ "$command" = help ]; then
        words=$("$ctl" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')
        [ "$COMP_CWORD" = 2 ] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
        return
    fi
    [ "$cur" = = ] && cur='' before=$COMP_CWORD # --option=VALUE is three words to bash
    [ "${COMP_WORDS[before]}" = = ] && prev=${COMP_WORDS[before - 1]}
    help=$("$ctl" "$command" --help 2>/dev/null) || return

    # All options, and the placeholder of the one that waits for its value.
    while IFS= read -r line; do
        [[ $line =~ $option ]] || continue
        words+="${BASH_REMATCH[1]} "
        [ "${BASH_REMATCH[1]}" = "$prev" ] && name=${BASH_REMATCH[3]} text=${BASH_REMATCH[5]}
    done <<<"$help"

    # Else the placeholder of the next positional word: the first line is "poisectl COMMAND [OPTION ...] A B: summary".
    if [ -z "$name" ] && [[ $cur != -* ]]; then
        prev=''
        for ((i = 2; i < COMP_CWORD; i++)); do
            [[ ${COMP_WORDS[i]} == -* || ${COMP_WORDS[i]} == = || ${COMP_WORDS[i - 1]} == = ]] && continue
            grep -q -- "^  ${COMP_WORDS[i - 1]} [^ ]" <<<"$help" || n=$((n + 1))
        done
        name=$(sed -n "1{s/: .*//; s/ \[OPTION ...\]//; s/^poisectl $command//p}" <<<"$help" |
            awk -v n=$((n + 1)) '{ print (n > NF && $NF == "..." ? $NF : $n) }')
        [ -z "$name" ] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur") && return
    fi
    case $name in
    '') mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur") ;;
    DIR) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    COMMAND) mapfile -t COMPREPLY < <(compgen -c -- "$cur") ;;
    CSV | *FILE* | ...) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$(_poisectl_values "$ctl" "$command" "$prev" "$name" "$text")" -- "$cur") ;;
    esac
}

complete -F _poisectl poisectl
