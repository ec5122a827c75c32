#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A group of real processes through Python: what goes in comes out, errors reach whom they must."""

import errno
import os
import signal
import struct
import threading
import time
import unittest
import warnings
from array import array

import rig
import poise

FIELDS = [
    poise.Field("pixels", "float32", (-1, 4), rows_of="grid", divisor=(1, 2, 2)),
    poise.Field("grid", "int64", (-1, 3)),
    poise.Field("ids", "int64", (-1,), assembly="padded", axis_name="text", pad_value=-100),
    poise.Field("mask", "bool", (-1,), assembly="padded", axis_name="text", pad_side="left"),
    poise.Field("caption", "bytes", (-1,), assembly="opaque"),
    poise.Field("score", "bfloat16", (), assembly="padded"),
]


def sample(rank, step, i):
    """Sizes and bytes that differ by rank, step and index; some have no image."""
    n = (rank * 7 + step * 3 + i * 5) % 6
    ids = [rank * 1000 + step * 100 + i] * (n + 1)
    values = {"ids": array("q", ids), "mask": bytes([1] * (n + 1)), "caption": f"rank {rank} step {step} sample {i}",
              "score": i}
    if n:
        values |= {"grid": [[1, 2, 2 * n]], "pixels": struct.pack(f"={4 * n}f", *[float(i)] * (4 * n))}
    return poise.Sample(values, length=(100 * n, 10 * n + 1), tag=rank << 32 | step << 16 | i, loss_tokens=n + 1)


PHASES = [poise.Phase("vision", linear=2, quadratic=1), poise.Phase("llm", linear=5)]


def group(rank, n, daemon, job, **options):
    return poise.Group(job, rank=rank, n_ranks=n, socket_dir=daemon, **{"cost": PHASES,
                                                                        "memory_budget": 64 << 20} | options)


def check(batch, i, step):
    """Sample i of a batch against what its origin made. Returns (origin rank, index)."""
    row = batch.rows[i]
    made = sample(row.origin_rank, step, row.origin_index)
    assert (row.tag, row.loss_tokens) == (made.tag, made.loss_tokens), row
    assert batch.value(i, "ids").tolist() == list(made.values["ids"])
    assert batch.value(i, "mask").tobytes() == made.values["mask"]
    assert bytes(batch.value(i, "caption").memory).decode() == made.values["caption"]
    assert batch.value(i, "score").tobytes() == struct.pack("<f", row.origin_index)[2:]
    assert batch.value(i, "grid").tolist() == made.values.get("grid", []), batch.value(i, "grid")
    pixels = batch.value(i, "pixels")
    assert pixels.tobytes() == made.values.get("pixels", b"") and pixels.shape[1:] == (4,)
    width = batch.field("ids").shape[1]
    padded = batch.field("ids").tolist()[i]
    assert padded == list(made.values["ids"]) + [-100] * (width - len(made.values["ids"]))
    left = batch.field("mask").tolist()[i]
    assert left == [False] * (width - len(made.values["mask"])) + [True] * len(made.values["mask"])
    return row.origin_rank, row.origin_index


def exchange(rank, daemon, n, steps, per_rank, copy):
    seen, moved = [], 0
    with group(rank, n, daemon, f"exchange{copy}", micro_batch_size=2, copy=copy) as g:
        g.declare(FIELDS)
        for step in range(steps):
            g.submit(step, [sample(rank, step, i) for i in range(per_rank)])
            for k in range(steps):
                batch = g.next()
                assert (batch.step, batch.micro_batch) == (step, k)
                assert batch.field("pixels").shape[1:] == (4,) and len(batch) == batch.n_samples == len(batch.rows)
                seen += [(step, *check(batch, i, step)) for i in range(len(batch))]
                if k + 1 == batch.n_micro_batches:
                    break
            assert batch.names == sorted(f.name for f in FIELDS) and "ids" in batch and "idz" not in batch
            assert batch.totals.n_samples == n * per_rank and len(batch.mapping.incoming) == per_rank
            assert batch.totals.mode == "on" and len(batch.totals.length_micro_batch_after) == 2
            moved += batch.totals.samples_moved
            assert [(one.rank, one.index) for one in batch.mapping.incoming][-len(batch):] == \
                [(row.origin_rank, row.origin_index) for row in batch.rows]
            g.report(step, 0.001)
            assert len(batch.plan_id) == 16
        assert g.stats()["steps_submitted"] == steps and g.stats()["samples_corrupt"] == 0
        assert not g.closed and [f.name for f in g.fields] == [f.name for f in FIELDS]
    assert g.closed
    return seen, moved


def weights(rank, daemon):
    with group(rank, 2, daemon, "weights", micro_batch_size=1) as g:
        g.declare(FIELDS)
        g.submit(0, [sample(rank, 0, i) for i in range(3)])
        g.end(1)
        return [(row.weight_step * row.loss_tokens,
                 row.weight_arrival * row.loss_tokens) for batch in g for row in batch.rows]


class Exchange(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(rig.Daemon())

    def test_every_sample_comes_once_and_whole(self):
        for copy in (False, True):
            results = rig.ranks(3, exchange, self.daemon.dir, 3, 6, 4, copy)
            seen = sorted(one for result, _ in results for one in result)
            self.assertEqual(seen, sorted((step, rank, i) for step in range(6) for rank in range(3) for i in range(4)))
            self.assertGreater(results[0][1], 0, "nothing moved: the test proves little")
            self.assertEqual({moved for _, moved in results}, {results[0][1]})

    def test_weights_sum_to_one(self):
        rows = [row for result in rig.ranks(2, weights, self.daemon.dir) for row in result]
        self.assertAlmostEqual(sum(step for step, _ in rows), 1.0, places=12)
        self.assertAlmostEqual(sum(arrival for _, arrival in rows), 1.0, places=12)

    def test_element_types_keep_their_bytes(self):
        types = rig.ranks(1, all_types, self.daemon.dir)[0]
        self.assertEqual(len(types), 18)

    def test_values_from_anything(self):
        rig.ranks(1, anything, self.daemon.dir)

    def test_alloc(self):
        rig.ranks(1, in_place, self.daemon.dir)

    def test_plan_only(self):
        results = rig.ranks(2, plan_only, self.daemon.dir)
        self.assertEqual(sorted(results[0] + results[1]), [(0, 0), (0, 1), (1, 0), (1, 1)])
        self.assertEqual(sorted({rank for rank, _ in results[0]}), [0, 1], "nothing moved")


def all_types(rank, daemon):
    """Each element type, as 0 dimensions, no rows, and two dimensions."""
    from poise import _c
    names = list(_c.DTYPES)
    with poise.Group("types", rank=0, n_ranks=1, socket_dir=daemon, cost="length") as g:
        g.declare([poise.Field(f"{kind}-{name}", name, shape, assembly=how) for name in names for kind, shape, how in
                   (("scalar", (), "padded"), ("empty", (-1, 3), "concat"), ("full", (-1, 3), "concat"))])
        raw = bytes(i % 2 for i in range(16 * 6))
        g.submit(0, [poise.Sample({f"scalar-{name}": raw[:size] for name, size in zip(names, _c.ITEM_SIZES)}
                                  | {f"empty-{name}": b"" for name in names}
                                  | {f"full-{name}": raw[:6 * size] for name, size in zip(names, _c.ITEM_SIZES)},
                                  length=1)])
        batch = g.next()
        for name, size in zip(names, _c.ITEM_SIZES):
            for view, shape in ((batch.field(f"scalar-{name}"), (1,)), (batch.value(0, f"scalar-{name}"), ()),
                                (batch.field(f"empty-{name}"), (0, 3)), (batch.field(f"full-{name}"), (2, 3)),
                                (batch.value(-1, f"full-{name}"), (2, 3))):
                assert (view.dtype, view.shape, view.itemsize) == (name, shape, size), view
                assert view.tobytes() == raw[:view.nbytes] == bytes(view.memory) and view.contiguous, view
                view.tolist()
    return names


def anything(rank, daemon):
    with poise.Group("anything", rank=0, n_ranks=1, socket_dir=daemon, cost="length") as g:
        g.declare([poise.Field("x", "int32", (-1, 2)), poise.Field("s", "str", (-1,)), poise.Field("c", "complex64",
                                                                                                   (-1,)),
                   poise.Field("f", "float64", (), assembly="padded"), poise.Field("h", "float16", (-1,))])
        table = memoryview(array("i", range(12))).cast("B").cast("i", (6, 2))
        given = [[[1, 2], [3, 4]], ((5, 6),), array("i", [7, 8]).tobytes(), table,
                 memoryview(bytearray(range(16)))[::2], []]
        wanted = [[[1, 2], [3, 4]], [[5, 6]], [[7, 8]], [[i, i + 1] for i in range(0, 12, 2)],
                  [list(struct.unpack("2i", bytes(range(0, 16, 2))))], []]
        g.submit(0, [poise.Sample({"x": x, "s": "grün", "c": [1 + 2j], "f": 0.5, "h": None}, 1, tag=i) for i,
                     x in enumerate(given)])
        batch = g.next()
        for i, row in enumerate(batch.rows):
            assert batch.value(i, "x").tolist() == wanted[row.tag], (row.tag, batch.value(i, "x").tolist())
            assert bytes(batch.value(i, "s").memory).decode() == "grün"
            assert batch.value(i, "c").tolist() == [1 + 2j] and batch.value(i, "f").tolist() == 0.5
            assert batch.value(i, "h").shape == (0,)


def in_place(rank, daemon):
    with poise.Group("alloc", rank=0, n_ranks=1, socket_dir=daemon, cost="length") as g:
        g.declare([poise.Field("x", "bytes", (-1,))])
        for step in range(12):
            wasted = g.alloc(1000)
            g.discard()
            view = g.alloc(70000)
            view[:] = bytes([step]) * 70000
            g.submit(step, [poise.Sample({"x": view}, 1)])
            for gone in (view, wasted):
                try:
                    gone[0] = 1
                except ValueError:
                    continue
                raise AssertionError("memory of a submitted step may still be written")
            assert g.next()["x"].tobytes() == bytes([step]) * 70000


def plan_only(rank, daemon):
    with poise.Group("mapping", rank=rank, n_ranks=2, socket_dir=daemon, cost="length", plan_only=True,
                     micro_batch_size=1) as g:
        lengths = [[100, 90], [1, 2]][rank]
        g.submit(0, [poise.Sample(length=length, nbytes=1000, tag=length) for length in lengths])
        batches = [g.next() for _ in range(2)]
        assert len(batches[0].mapping.outgoing) == 2 and batches[0].names == [] and batches[0].totals.bytes == 4000
        own = {place.place: lengths[i] for i, place in enumerate(batches[0].mapping.outgoing) if place.rank == rank}
        for place, one in enumerate(batches[0].mapping.incoming):
            assert one.rank != rank or batches[one.micro_batch].rows[one.row].tag == own[place]
        return [(one.rank, one.index) for one in batches[0].mapping.incoming]


# ------------------------------------------------------------------------------------------------------------- errors


def bad_sample(rank, daemon):
    texts = []
    with group(rank, 2, daemon, "bad") as g:
        g.declare(FIELDS)
        for step in range(3):
            samples = [sample(rank, step, i) for i in range(2)]
            if step == 1 and rank == 1:
                samples[1].values["grid"] = [[1, 1, 1]]  # no multiple of the merge
                try:
                    g.submit(step, samples)
                except poise.InvalidInput as error:
                    assert (error.sample, error.field) == (1, "grid"), error
                refused = g.submit_or_fail(step, samples)
                assert refused.sample == 1
            else:
                assert g.submit_or_fail(step, samples) is None
            try:
                assert g.next().step == step
            except poise.StepError as error:
                texts.append((step, error.rank, error.step, error.text))
    return texts


def failing_loader(rank, daemon):
    with group(rank, 2, daemon, "loader") as g:
        g.declare(FIELDS)
        if rank == 0:
            g.fail(0, "the loader raised KeyError: 'image'")
        else:
            g.submit(0, [])
        try:
            g.next()
        except poise.StepError as error:
            return error.rank, error.text
    return None


def end_of_data(rank, daemon, how):
    with group(rank, 2, daemon, "end" + how, end=how, prefetch_depth=7) as g:
        g.declare(FIELDS)
        for step in range(2 + rank):
            g.submit(step, [sample(rank, step, 0)])
        g.end(2 + rank)
        g.end(2 + rank)  # saying so again is fine
        steps = [batch.step for batch in g]
        try:
            g.next()
        except poise.EndOfData:
            return steps
    return None


def late(rank, daemon):
    """Rank 1 submits nothing until rank 0 has seen two timeouts."""
    with group(rank, 2, daemon, "late", prefetch_depth=1) as g:
        g.declare(FIELDS)
        if rank == 0:
            g.submit(0, [sample(0, 0, 0)])
            began = time.monotonic()
            for seconds in (0, 0.35):
                try:
                    g.next(timeout=seconds)
                    raise AssertionError("a batch came")
                except TimeoutError as error:
                    text = str(error)
            waited = time.monotonic() - began
            assert "not submitted it" in text, text
            assert 350 <= int(text.split()[1]) <= 1000 * waited, text
            g.submit(1, [sample(0, 1, 0)])
            try:
                g.submit(2, [sample(0, 2, 0)], timeout=0.1)
                raise AssertionError("submitted too far ahead")
            except poise.Timeout as error:
                assert "prefetch_depth" in error.text
            try:
                g.next(iterator=1)
            except poise.InvalidInput as error:
                assert "n_iterators" in error.text
            os.mkfifo(daemon + ".go")
        else:
            rig.until(lambda: os.path.exists(daemon + ".go"), "rank 0's word")
            for step in range(2):
                g.submit(step, [sample(1, step, 0)])
        return [g.next().step for _ in range(2)]


def killed(rank, daemon):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        g = group(rank, 2, daemon, "killed")
        g.declare(FIELDS)
        g.submit(0, [sample(rank, 0, 0)])
        g.next()
        if rank == 1:
            os.mkfifo(daemon + ".dead")
            signal.pause()
        try:
            g.next()
        except poise.Aborted as error:
            g.close()
            return error.rank, error.text, error.step
    return None


def iterators(rank, daemon):
    with group(rank, 1, daemon, "iterators", n_iterators=2, micro_batch_size=1) as g:
        g.declare(FIELDS)
        g.submit(0, [sample(0, 0, i) for i in range(3)])
        g.end(1)
        return [[batch.rows[0].tag for batch in g.batches(k)] for k in range(2)]


def notices(rank, daemon):
    """Two ranks that submit the very same samples are warned of."""
    with group(rank, 2, daemon, "twins") as g, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        g.declare(FIELDS)
        notes = []
        for step in range(200):
            g.submit(step, [sample(0, step, i) for i in range(3)])
            g.next()
            notes += g.notices() if step > 5 else []
            if notes:
                break
        note = notes[0]
        texts = [str(one.message) for one in caught if issubclass(one.category, poise.PoiseWarning)]
        assert f"step {note.step}: {note.text}" in texts, (texts, notes)
        files = {one.filename for one in caught if issubclass(one.category, poise.PoiseWarning)}
        assert files == {__file__}, files  # where the trainer called, not inside the package
        return note.severity, note.text


class Errors(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(rig.Daemon())

    def test_a_bad_sample_is_the_same_error_on_every_rank(self):
        one, two = rig.ranks(2, bad_sample, self.daemon.dir)
        self.assertEqual(one, two)
        self.assertEqual([error[:3] for error in one], [(1, 1, 1)])
        self.assertIn("grid", one[0][3])

    def test_a_loader_that_fails(self):
        for rank, text in rig.ranks(2, failing_loader, self.daemon.dir):
            self.assertEqual(rank, 0)
            self.assertIn("KeyError: 'image'", text)

    def test_the_end_as_the_option_says(self):
        self.assertEqual(rig.ranks(2, end_of_data, self.daemon.dir, "stop"), [[0, 1], [0, 1]])
        self.assertEqual(rig.ranks(2, end_of_data, self.daemon.dir, "continue"), [[0, 1, 2], [0, 1, 2]])

    def test_timeouts_say_what_was_waited_for_and_how_long(self):
        self.assertEqual(rig.ranks(2, late, self.daemon.dir), [[0, 1], [0, 1]])

    def test_a_rank_that_dies_is_named(self):
        with rig.processes(2, killed, self.daemon.dir) as (started, pipes):
            rig.until(lambda: os.path.exists(self.daemon.dir + ".dead"), "rank 1 in its pause")
            os.kill(started[1].pid, signal.SIGKILL)
            good, result = pipes[0].recv()
        self.assertTrue(good, result)
        self.assertIn("rank 1", result[1])

    def test_every_iterator_reads_everything(self):
        first, second = rig.ranks(1, iterators, self.daemon.dir)[0]
        self.assertEqual(first, second)
        self.assertEqual(sorted(first), [0, 1, 2])

    def test_notices_become_warnings(self):
        for severity, text in rig.ranks(2, notices, self.daemon.dir):
            self.assertEqual(severity, "warning")
            self.assertRegex(text, "ranks [01] and [01] ")

    def test_options_that_differ_name_both(self):
        with self.assertRaisesRegex(AssertionError, "micro_batch_size"):
            rig.ranks(2, differing, self.daemon.dir)

    def test_a_closed_group(self):
        rig.ranks(1, closed, self.daemon.dir)

    def test_close_while_others_wait(self):
        rig.ranks(1, closing, self.daemon.dir)


def differing(rank, daemon):
    group(rank, 2, daemon, "differ", micro_batch_size=1 + rank).close()


def closed(rank, daemon):
    g = group(rank, 1, daemon, "closed")
    assert "rank 0 of 1" in repr(g) and "closed" not in repr(g)
    g.close()
    g.close()
    assert "closed" in repr(g)
    for call in (g.next, lambda: g.submit(0, []), g.stats, lambda: g.end(0), lambda: g.declare([])):
        try:
            call()
        except poise.Aborted as error:
            assert error.code == -errno.ESHUTDOWN and "is closed" in error.text
            continue
        raise AssertionError("a closed group answers")
    assert g.notices() == []


def closing(rank, daemon):
    """close() from another thread ends a wait, and nothing is touched behind it."""
    g = group(rank, 1, daemon, "closing")
    ended = []

    def wait():
        try:
            g.next()
        except poise.PoiseError as error:
            ended.append(error)

    threads = [threading.Thread(target=wait) for _ in range(1)]
    for thread in threads:
        thread.start()
    rig.until(lambda: g._inside, "the wait")
    g.close()
    for thread in threads:
        thread.join(rig.LIMIT)
    assert [type(error) for error in ended] == [poise.Aborted], ended


if __name__ == "__main__":
    rig.main()
