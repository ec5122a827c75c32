#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Waits free the GIL and answer Ctrl-C; a process that ends leaves in order."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import rig
import poise

LONG = 120  # seconds that a wait would take; far above what answering a signal may
SOON = 30  # and far below that, also on a slow machine


def group(daemon, rank, n, job, **options):
    return poise.Group(job, rank=rank, n_ranks=n, socket_dir=daemon, cost="length", memory_budget=16 << 20, **options)


def interrupt_soon():
    """Ctrl-C until the main thread has seen it."""
    stop = threading.Event()

    def send():
        while not stop.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)
            return

    threading.Thread(target=send, daemon=True).start()
    return stop


def answers(call):
    """The seconds until Ctrl-C ended a call."""
    began = time.monotonic()
    stop = interrupt_soon()
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - began
    finally:
        stop.set()
    raise AssertionError("the call came back without an exception")


def every_wait(rank, daemon):
    g = group(daemon, 0, 1, "waits", prefetch_depth=1)
    g.declare([poise.Field("x", "bytes", (-1,))])
    assert answers(lambda: g.next(timeout=LONG)) < SOON
    sample = poise.Sample({"x": b"abc"}, 1)
    for step in range(2):
        g.submit(step, [sample])
    assert answers(lambda: g.submit(2, [sample], timeout=LONG)) < SOON
    assert answers(lambda: g.fail(2, "no", timeout=LONG)) < SOON
    assert answers(lambda: g.end(2, timeout=LONG)) < SOON
    # None of them has done anything, or left something behind.
    assert [g.next().step for _ in range(2)] == [0, 1]
    g.submit(2, [sample])
    assert g.next()["x"].tobytes() == b"abc"
    assert answers(lambda: group(daemon, 0, 2, "alone", open_timeout_ms=LONG * 1000)) < SOON
    g.close()


def close_is_cut(rank, daemon):
    """Rank 0 closes while rank 1 never takes what was promised to it."""
    g = group(daemon, rank, 2, "close", close_timeout_ms=LONG * 1000)
    g.declare([poise.Field("x", "bytes", (-1,))])
    g.submit(0, [poise.Sample({"x": b"abc"}, 1)])
    if rank == 1:
        rig.until(lambda: os.path.exists(daemon + ".cut"), "rank 0's word")
        os._exit(0)
    g.submit(1, [poise.Sample({"x": b"abc"}, 1)])
    took = answers(g.close)
    os.mkfifo(daemon + ".cut")
    return took


def gil_is_free(rank, daemon):
    count = 0
    stop = threading.Event()

    def work():
        nonlocal count
        while not stop.is_set():
            count += 1

    with group(daemon, 0, 1, "gil") as g:
        thread = threading.Thread(target=work)
        thread.start()
        rig.until(lambda: count, "the other thread")
        before = count
        try:
            g.next(timeout=0.5)
        except poise.Timeout:
            pass
        counted = count - before
        stop.set()
        thread.join()
    return counted


def interrupted(rank, daemon):
    with group(daemon, 0, 1, "interrupt") as g:
        threading.Timer(0.1, g.interrupt).start()
        try:
            g.next(timeout=LONG)
        except poise.Interrupted as error:
            return error.text
    return None


ENDS_FIRST = """
import sys, poise
g = poise.Group("exit", rank=0, n_ranks=2, socket_dir=sys.argv[1], cost="length", memory_budget=16 << 20)
g.declare([poise.Field("x", "bytes", (-1,))])
for step in range(2):
    g.submit(step, [poise.Sample({"x": bytes([step]) * 100}, 50 if i else 1, tag=i) for i in range(3)])
batches = [g.next() for _ in range(2)]
if sys.argv[2] == "crash":
    raise RuntimeError("the trainer's own")
"""


def reads_late(rank, daemon, how):
    """Rank 1 takes its samples when rank 0's program is at its end without close()."""
    g = poise.Group("exit", rank=1, n_ranks=2, socket_dir=daemon, cost="length", memory_budget=16 << 20)
    g.declare([poise.Field("x", "bytes", (-1,))])
    samples = [poise.Sample({"x": b"y" * 100}, 1, tag=i) for i in range(3)]
    for step in range(2):
        g.submit(step, samples)
    try:
        return [batch.step for batch in (g.next(timeout=SOON), g.next(timeout=SOON))], g.next(timeout=SOON)
    except poise.Aborted as error:
        g.close(wait=False)
        return error.text


class Signals(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(rig.Daemon())

    def test_ctrl_c_ends_every_wait(self):
        rig.ranks(1, every_wait, self.daemon.dir)

    def test_ctrl_c_ends_close(self):
        with rig.processes(2, close_is_cut, self.daemon.dir) as (_, pipes):
            good, took = pipes[0].recv()
        self.assertTrue(good, took)
        self.assertLess(took, SOON)

    def test_other_threads_run_meanwhile(self):
        self.assertGreater(rig.ranks(1, gil_is_free, self.daemon.dir)[0], 1000)

    def test_interrupt(self):
        self.assertIn("interrupt", rig.ranks(1, interrupted, self.daemon.dir)[0])

    def ends_first(self, how):
        first = subprocess.Popen([sys.executable, "-W", "ignore", "-c", ENDS_FIRST, self.daemon.dir, how],
                                 stderr=subprocess.PIPE)
        text = rig.ranks(1, lambda rank: reads_late(1, self.daemon.dir, how))[0]
        _, stderr = first.communicate(timeout=rig.LIMIT)
        return first.returncode, stderr.decode(), text

    def test_a_program_that_ends_without_close_serves_its_peers(self):
        status, stderr, text = self.ends_first("well")
        self.assertEqual((status, stderr), (0, ""))
        self.assertIn("rank 0 left after step 1", text)

    def test_a_program_that_crashes_does_not_wait_for_them(self):
        status, stderr, text = self.ends_first("crash")
        self.assertEqual(status, 1)
        self.assertIn("RuntimeError", stderr)
        self.assertIn("rank 0", text)


if __name__ == "__main__":
    rig.main()
