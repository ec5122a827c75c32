#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a step: the processor's time of the trainer's own thread in submit() and in next() and reading
all micro-batches, without payload, beside the same calls of the library alone. Times of the thread, not of the clock,
so a busy machine changes them little. Goal: below 1 ms a step at 8 ranks x 8 samples.

    make bench-python
"""

import ctypes
import statistics
import sys
import time

import rig
import poise
from poise import _c, samples

RANKS, PER_RANK, STEPS, MICRO_BATCH = 8, 8, 300, 2
NAMES = ("packing samples", "submit", "next and reading", "all of a step", "the library alone")


def library_alone(g, step, given):
    """The same step through ctypes with arrays that are ready: what no Python can save."""
    lib, err, batch = g._lib, _c.Err(), ctypes.c_void_p()
    packed = samples.Packed(given, g.phases, g._fields)
    began = time.thread_time_ns()
    rc = lib.poise_submit(g._p, step, packed.address, packed.n, ctypes.sizeof(_c.Sample), -1, ctypes.byref(err))
    for _ in range(PER_RANK // MICRO_BATCH):
        rc |= lib.poise_next(g._p, 0, -1, ctypes.byref(batch), ctypes.byref(err))
        lib.poise_release(batch)
    took = time.thread_time_ns() - began
    packed.release()
    if rc:
        raise SystemExit(err.text.decode())
    return took


def rank(number, daemon):
    """[4] lists of nanoseconds a step."""
    times = [[] for _ in NAMES]
    with poise.Group("bench", rank=number, n_ranks=RANKS, socket_dir=daemon, cost="qwen2.5-vl-7b",
                     micro_batch_size=MICRO_BATCH,
                     memory_budget=16 << 20) as g:
        for step in range(2 * STEPS):
            given = [poise.Sample(length=((number * 7 + i * step) % 900 + 1, 100 + i), tag=i,
                                  loss_tokens=10) for i in range(PER_RANK)]
            if step >= STEPS:
                times[4].append(library_alone(g, step, given))
                continue
            packs = time.thread_time_ns()
            samples.Packed(given, g.phases, g._fields).release()
            began = time.thread_time_ns()
            g.submit(step, given)
            submitted = time.thread_time_ns()
            total = 0
            for _ in range(PER_RANK // MICRO_BATCH):
                batch = g.next()
                total += sum(row.loss_tokens for row in batch.rows)
                batch.release()
            ended = time.thread_time_ns()
            assert total == PER_RANK * 10
            for to, took in zip(times, (began - packs, submitted - began, ended - submitted, ended - began)):
                to.append(took)
    return times


def main():
    with rig.Daemon() as daemon:
        results = rig.ranks(RANKS, rank, daemon.dir)
    print(f"microseconds of the trainer's thread a step; {RANKS} ranks x {PER_RANK} samples, "
          f"{PER_RANK // MICRO_BATCH} micro-batches")
    print(f"{'':20} {'median':>8} {'p99':>8}")
    for name, *columns in zip(NAMES, *results):
        every = sorted(took / 1000 for column in columns for took in column[STEPS // 10:])
        print(f"{name:20} {statistics.median(every):8.0f} {every[len(every) * 99 // 100]:8.0f}")
    lengths = [(i * 7919) % 8192 + 1 for i in range(2048)]
    best = []
    for _ in range(20):
        began = time.thread_time_ns()
        poise.balanced_partitions(lengths, 64)
        best.append((time.thread_time_ns() - began) / 1e6)
    print(f"balanced_partitions, 2,048 lengths into 64: {statistics.median(best):.2f} ms (least {min(best):.2f})")


if __name__ == "__main__":
    sys.exit(main())
