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
