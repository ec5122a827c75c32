# SPDX-License-Identifier: Apache-2.0
# What test scripts share; sourced. A script defines fail TEXT, which ends it, or begins with working_folder.

working_folder() { # $work, $dir for sockets in it, and fail; at the end processes of pids are ended, and the folder goes
    work=$(mktemp -d)
    dir="$work/sockets"
    pids=()
    trap finish EXIT
    fail() {
        echo "FAILED: $*"
        for file in out err; do [ ! -e "$work/$file" ] || tail -n 40 "$work/$file"; done
        exit 1
    }
}

finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}

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
