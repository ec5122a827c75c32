#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A batch keeps its memory until the last view of it is gone, and no longer."""

import gc
import os
import sys
import threading
import unittest
import weakref
from itertools import islice

import rig
import poise
from poise import group as group_module

MB = 1 << 20


def open_group(daemon, job, **options):
    g = poise.Group(job, rank=0, n_ranks=1, socket_dir=daemon, **{"cost": "length", "memory_budget": 16 * MB} | options)
    g.declare([poise.Field("x", "uint8", (-1,)), poise.Field("ids", "int32", (-1,), assembly="padded", pad_value=9)])
    return g


def feed(g, n, size=MB // 2):
    """Submits n steps of one sample each from another thread; the bytes of step i are i."""
    def run():
        try:
            for step in range(n):
                g.submit(step, [poise.Sample({"x": bytes([step]) * size, "ids": [step] * (step + 1)}, 1)])
            g.end(n)
        except poise.Aborted:
            pass  # the test is over

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def is_step(view, step):
    return view.tobytes() == bytes([step]) * view.nbytes and view.nbytes > 0


def held_list(rank, daemon):
    """The pattern of gradient accumulation and look-ahead."""
    with open_group(daemon, "list", memory_budget=64 * MB) as g:
        feed(g, 24)
        batches = list(islice(g, 8))
        more = iter(g)
        for step in range(8, 16):
            batch = next(more)
            assert is_step(batch["x"], step)
            for i, held in enumerate(batches):
                assert is_step(held["x"], i), i
        del batch
        first = batches[0]["x"].memory
        part = first[100:200]  # a view of a view
        del batches, first
        for step in range(16, 24):
            assert is_step(next(more)["x"], step)
            assert part.tobytes() == bytes(100)
    assert part.tobytes() == bytes(100)  # also after close


def views_go(rank, daemon):
    """Without views a slot comes back: hundreds of steps run in memory for a few."""
    with open_group(daemon, "go") as g:
        feed(g, 200)
        last = None
        for step, batch in enumerate(g):
            view = batch["x"].memory
            assert view[0] == step and view[-1] == step
            if step % 50 == 0:
                last = batch["x"]
            assert last.tobytes()[0] == step // 50 * 50
        assert g.stats()["arena_bytes"] <= 16 * MB


def too_many(rank, daemon):
    group_module._HELD_SECONDS = 0.3
    with open_group(daemon, "many", memory_budget=8 * MB, prefetch_depth=7) as g:
        feed(g, 60)
        held = []
        try:
            while len(held) < 60:
                held.append(g.next())
            raise AssertionError("everything fits")
        except poise.OutOfMemory as error:
            assert "has not released" in error.text and "memory_budget" in error.text, error
            assert isinstance(error, MemoryError)
        n = len(held)
        assert n >= 2 and all(is_step(batch["x"], i) for i, batch in enumerate(held))
        held[0].release()
        held[0] = None
        del held[:]
        assert is_step(g.next()["x"], n)  # the failed call lost nothing


def cycles(rank, daemon):
    """Batches in reference cycles are found by a collection before anything fails."""
    gc.disable()
    with open_group(daemon, "cycles", memory_budget=8 * MB) as g:
        feed(g, 40)
        for step in range(40):
            batch = g.next()
            assert is_step(batch["x"], step)
            knot = [batch]
            knot.append(knot)
            del knot, batch


def reuse(rank, daemon):
    with open_group(daemon, "reuse", reuse=True, memory_budget=8 * MB) as g:
        feed(g, 60)
        held = [g.next() for _ in range(50)]  # far more than fit
        assert is_step(held[-1]["x"], 49)
        try:
            held[0]["x"]
            raise AssertionError("a recycled batch answers")
        except poise.InvalidInput as error:
            assert "released" in error.text
        assert held[0].step == 0


def copies(rank, daemon):
    with open_group(daemon, "copies", copy=True, memory_budget=8 * MB) as g:
        feed(g, 50)
        held = list(g)
        assert len(held) == 50
        for step, batch in enumerate(held):
            assert is_step(batch["x"], step) and is_step(batch.value(0, "x"), step)
            assert batch["ids"].tolist() == [[step] * (step + 1)]
            assert batch.value(0, "ids").tolist() == [step] * (step + 1)
            assert batch.rows[0].origin_index == 0 and batch.totals.n_samples == 1
            assert batch.detach() is batch
        memory = held[3]["x"].memory
        memory[0] = 77  # its own
        assert held[3]["x"].memory[0] == 77


def released(rank, daemon):
    with open_group(daemon, "released") as g:
        feed(g, 3)
        batch = g.next()
        rows, view = batch.rows, batch["x"]
        with batch:
            pass
        assert rows[0].tag == 0 and is_step(view, 0)  # the view keeps it
        for ask in (lambda: batch.totals, lambda: batch.field("x"), lambda: batch.value(0, "x"), batch.detach):
            try:
                ask()
            except poise.InvalidInput:
                continue
            raise AssertionError("a released batch answers")
        other = g.next()
        for wrong, error in ((lambda: other.field("y"), KeyError), (lambda: other.value(1, "x"), IndexError),
                             (lambda: other.value(-2, "x"), IndexError)):
            try:
                wrong()
            except error:
                continue
            raise AssertionError("no error")
        watch = weakref.ref(other._hold)
        memory = other["x"].memory
        del other
        assert watch() is not None
        del memory
        assert watch() is None
        del view
        assert is_step(g.next()["x"], 2)


def strides(rank, daemon):
    with poise.Group("strides", rank=0, n_ranks=1, socket_dir=daemon, cost="length") as g:
        g.declare([poise.Field("m", "int16", (-1, -1), assembly="padded", axis=1, pad_value=-1)])
        given = [[[1, 2], [3, 4], [5, 6]], [[7]]]
        g.submit(0, [poise.Sample({"m": value}, 1) for value in given])
        batch = g.next()
        assert batch["m"].shape == (3, 2, 2)
        assert batch["m"].tolist() == [[[1, 2], [7, -1]], [[3, 4], [-1, -1]], [[5, 6], [-1, -1]]]
        for i, value in enumerate(given):
            view = batch.value(i, "m")
            assert view.tolist() == value and not (i == 0 and view.contiguous), view
        try:
            batch.value(0, "m").memory
            raise AssertionError("not contiguous")
        except poise.InvalidInput as error:
            assert "strides" in error.text
        described = batch.value(0, "m").__array_interface__
        assert described["shape"] == (3, 2) and described["typestr"] == "<i2"
        assert described["strides"] == (8, 2), described


def after_fork(rank, daemon):
    with open_group(daemon, "fork") as g:
        feed(g, 4)
        batch = g.next()
        view = batch["x"]
        copied = g.next(copy=True)
        pid = os.fork()
        if pid == 0:
            try:
                for ask in (g.next, g.stats, lambda: g.submit(9, []), lambda: batch.field("x"), lambda: view.tobytes(),
                            lambda: view.memory):
                    try:
                        ask()
                    except poise.UseAfterFork:
                        continue
                    os._exit(1)
                if not is_step(copied["x"], 1):
                    os._exit(3)
                g.close()
                del batch, view, g
                gc.collect()
                os._exit(0)
            except BaseException as error:
                print(error, file=sys.stderr)
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert is_step(view, 0) and is_step(g.next()["x"], 2)


class Batches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(rig.Daemon())

    def test_a_list_of_batches_has_its_own_contents(self):
        rig.ranks(1, held_list, self.daemon.dir)

    def test_memory_comes_back_when_views_go(self):
        rig.ranks(1, views_go, self.daemon.dir)

    def test_too_many_held_is_an_error_that_says_so(self):
        rig.ranks(1, too_many, self.daemon.dir)

    def test_reference_cycles(self):
        rig.ranks(1, cycles, self.daemon.dir)

    def test_reuse(self):
        rig.ranks(1, reuse, self.daemon.dir)

    def test_copy(self):
        rig.ranks(1, copies, self.daemon.dir)

    def test_release(self):
        rig.ranks(1, released, self.daemon.dir)

    def test_strides(self):
        rig.ranks(1, strides, self.daemon.dir)

    def test_use_after_fork(self):
        rig.ranks(1, after_fork, self.daemon.dir)


if __name__ == "__main__":
    rig.main()
