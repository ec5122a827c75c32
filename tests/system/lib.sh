# SPDX-License-Identifier: Apache-2.0
# What test scripts share; sourced. The script defines fail TEXT, which ends it.

until_true() { # a condition, at most 30 s
    local i
    for ((i = 0; i < 600; i++)); do
        eval "$1" && return
        sleep 0.05 # between two looks
    done
    fail "never came: $1"
}

processes_with() { # TEXT [MORE]: the pids of those that have both in their command lines
    local file
    for file in $(grep -lsF -- "$1" /proc/[0-9]*/cmdline); do # also finds itself, which is gone in the next line
        tr '\0' ' ' 2>/dev/null <"$file" | grep -q -- "${2:-}" && cut -d/ -f3 <<<"$file"
    done 2>/dev/null || true
}
