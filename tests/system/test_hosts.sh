#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Four hosts of two ranks, each host a network namespace: real TCP between them, encrypted. Each kind of fault once: a cut
# link, lost packets, reset connections, a slow link, killed and stopped daemons and coordinators, a killed trainer, a host
# that vanishes. Then two hosts whose messages to the coordinator take 40 ms longer, unencrypted.
set -eu
skip() {
    echo "SKIPPED: $*"
    exit 77
}
unshare --net --uts true 2>/dev/null || skip "network namespaces may not be made here"
for tool in ip tc nft; do command -v $tool >/dev/null || skip "$tool is missing (Debian: iproute2, nftables)"; done

"$BUILD/chaos" --hosts 4 --coordinators 2 --ranks 2 --keys --each --minutes 10 --seed "${POISE_SEED:-1}"
"$BUILD/chaos" --hosts 2 --coordinators 1 --ranks 2 --delay-ms 40 --minutes 0.1 --faults 2 --only stop-trainer,kill-daemon \
    --seed "${POISE_SEED:-1}"
