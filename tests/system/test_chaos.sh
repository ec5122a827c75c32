#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Each kind of fault of `make chaos` once, on one host: daemons killed, stopped and started again, trainers stopped, the
# mode switched. Not one sample may be lost, doubled or altered, and no trainer may see an error.
set -eu
exec "$BUILD/chaos" --hosts 1 --coordinators 1 --ranks 3 --each --minutes 5 --seed "${POISE_SEED:-1}" \
    --only kill-daemon,kill-daemons,restart-daemon,stop-daemon,stop-trainer,mode
