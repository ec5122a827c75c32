#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The real poised, trainers and poisectl under ThreadSanitizer: a small demo. tests/run looks for reports.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TMPDIR="$work" "$BUILD/poisectl" demo --data tests/data/image_text.csv --ranks 3 --steps 3 --per-rank 3 --micro-batch 2 \
    --compute-ms 20
