# SPDX-License-Identifier: Apache-2.0
"""The drop-in for collated batches, with real ranks and a real daemon: what it yields against what the loader gave."""

from __future__ import annotations

import inspect
import json
import os
import signal
import unittest
import warnings

import cluster
import torch
import vlm_batches as vlm
from poise.data_balance import DataBalance
from poise.errors import Aborted

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = [(1, 0), (0, 0), (3, 0), (0, 1), (1, 0), (2, 2), (0, 0), (1, 1)]  # images and videos of a sample, by its number


def samples_of(rank: int, step: int, n: int, kinds=KINDS, most: int = 6) -> list[dict]:
    """A rank's samples of a step. Rank 0's images are the largest, so there is something to balance."""
    return [
        vlm.sample(f"r{rank}s{step}i{i}", *kinds[(rank + step + i) % len(kinds)], most=most if rank else 3 * most)
        for i in range(n)
    ]


def plain(value):
    """Of a batch, what can go through a pipe and be compared."""
    if isinstance(value, torch.Tensor):
        return vlm.bits(value)
    return value


def read_step(batches) -> list[dict]:
    """The micro-batches of a step with their samples' origins."""
    made = []
    for batch in batches:
        rows = [(row.origin_rank, row.origin_index) for row in batches.info.rows]
        assert len({(row.origin_rank, row.tag) for row in batches.info.rows}) == len(rows)
        made.append({"rows": rows, "keys": list(batch), "batch": {key: plain(value) for key, value in batch.items()}})
    return made


def balance_steps(rank, n, n_steps, size, number, n_samples, side="right", **keywords):
    """Balances some steps and returns, by step, the micro-batches of this rank."""
    loader = (vlm.collate(samples_of(rank, step, n_samples), side) for step in range(n_steps))
    with DataBalance(None, vlm.MODEL, None, 1, loader, padding_side=side, **keywords) as balancer:
        steps = []
        for _ in range(n_steps):
            steps.append(read_step(balancer.build_balanced_train_data_iterator(False, size, size, number, "image")))
        assert_ended(balancer, size, number)
        return steps


def assert_ended(balancer, size, number):
    try:
        balancer.build_balanced_train_data_iterator(False, size, size, number, "image")
    except StopIteration:
        return
    raise AssertionError("no StopIteration at the end of the data")


class RealRanks(cluster.Case):
    def run_ranks(self, n, function, *args, **keywords):
        return self.ranks(_with_keywords, n, n, function, args, keywords)

    def check_steps(self, by_rank, n_samples, side="right"):
        """Every sample exactly once, and each micro-batch what the collator makes of its samples, in their order."""
        moved = 0
        for step in range(len(by_rank[0])):
            seen = []
            for rank, steps in enumerate(by_rank):
                for one in steps[step]:
                    seen += one["rows"]
                    moved += sum(origin != rank for origin, _ in one["rows"])
                    samples = [samples_of(origin, step, n_samples[origin])[i] for origin, i in one["rows"]]
                    self.check_batch(one, samples, side)
            self.assertEqual(sorted((r, i) for r, n in enumerate(n_samples) for i in range(n)), sorted(seen))
        return moved

    def check_batch(self, one, samples, side):
        wanted = {key: plain(value) for key, value in vlm.collate(samples, side).items()}
        for key, value in one["batch"].items():
            if key in wanted:
                self.assertEqual(wanted[key], value, f"{key} of {one['rows']}")
            else:  # no such medium in this micro-batch: no rows, or an empty list
                self.assertEqual(0, len(value) if isinstance(value, list) and not value else value[0][0], key)
        self.assertLessEqual(wanted.keys(), one["batch"].keys())


def _with_keywords(rank, n, function, args, keywords):
    return function(rank, n, *args, **keywords)


class Content(RealRanks):
    def test_each_sample_once_and_bit_for_bit(self):
        for side in ("right", "left"):
            with self.subTest(side=side):
                by_rank = self.run_ranks(3, balance_steps, 4, 2, 2, 4, side=side)
                self.assertGreater(self.check_steps(by_rank, [4] * 3, side), 0)
                for steps in by_rank:
                    self.assertEqual([2] * 4, [len(step) for step in steps])

    def test_keys_are_the_loaders_in_its_order(self):
        order = list(vlm.collate(samples_of(0, 0, 8)))
        for steps in self.run_ranks(2, balance_steps, 2, 4, 2, 8):
            for step in steps:
                for one in step:
                    self.assertEqual(order, one["keys"])

    def test_uneven_and_empty_ranks(self):
        by_rank = self.run_ranks(3, uneven)
        self.check_steps(by_rank, [5, 2, 1])
        self.assertEqual([[3] * 2] * 3, [[len(step) for step in steps] for steps in by_rank])

    def test_shadow_is_arrival_order(self):
        for rank, steps in enumerate(self.run_ranks(2, balance_steps, 3, 2, 2, 4, mode="shadow")):
            for step in steps:
                self.assertEqual([[(rank, 0), (rank, 1)], [(rank, 2), (rank, 3)]], [one["rows"] for one in step])

    def test_a_rank_of_text_alone_receives_images(self):
        by_rank = self.run_ranks(2, text_rank)
        given = [vlm.bits(vlm.sample(f"r0s{step}i{i}", 1, most=9)["pixels"]) for step in range(3) for i in range(4)]
        got = [one for steps in by_rank for step in steps for one in step]
        pixels = b"".join(one["pixel_values"][2] for one in got if "pixel_values" in one)
        self.assertEqual(sum(len(one[2]) for one in given), len(pixels))
        received = [one for step in by_rank[1] for one in step if one.get("pixel_values", [(0,)])[0][0]]
        self.assertGreater(len(received), 0)
        for one in received:
            self.assertEqual("torch.bfloat16", one["pixel_values"][1])

    def test_absent_media(self):
        for absent, seen in (("rows", {"rows"}), ("omit", {"omit"}), ("none", {"none"})):
            found = {what for one in self.run_ranks(2, absent_kinds, absent) for what in one}
            self.assertEqual(seen | {"some"}, found)


def uneven(rank, n):
    n_samples = [5, 2, 1][rank]
    loader = iter([vlm.collate(samples_of(rank, step, n_samples)) for step in range(2)])
    with DataBalance(None, vlm.MODEL, None, 1, loader) as balancer:
        return [read_step(balancer.build_balanced_train_data_iterator(False, 2, 2, 3)) for _ in range(2)]


def short_last(rank, n):
    """Two micro-batches are enough, and the trainer reads three."""
    with DataBalance(None, vlm.MODEL, None, 1, [vlm.collate(samples_of(rank, 0, [3, 1][rank]))]) as balancer:
        return [read_step(balancer.build_balanced_train_data_iterator(False, 2, 2, 3))]


def text_rank(rank, n):
    def batch(step):
        if rank:
            return vlm.collate([vlm.sample(f"t{step}{i}", 0, words=5) for i in range(4)])
        return vlm.collate([vlm.sample(f"r0s{step}i{i}", 1, most=9) for i in range(4)])

    with DataBalance(None, vlm.MODEL, None, 1, map(batch, range(3))) as balancer:
        return [
            [
                {key: plain(value) for key, value in one.items()}
                for one in balancer.build_balanced_train_data_iterator(False, 1, 1, 4)
            ]
            for _ in range(3)
        ]


def absent_kinds(rank, n, absent):
    """One sample in two has an image, micro-batches of one: some have none."""
    batches = [vlm.collate([vlm.sample(f"{rank}{i}", i % 2) for i in range(4)])]
    with DataBalance(None, vlm.MODEL, None, 1, batches, absent=absent) as balancer:
        found = []
        for one in balancer.build_balanced_train_data_iterator(False, 1, 1, 4):
            if "pixel_values" not in one:
                found.append("omit")
            elif one["pixel_values"] is None:
                found.append("none")
            else:
                found.append("some" if len(one["pixel_values"]) else "rows")
            assert ("image_grid_thw" in one) == ("pixel_values" in one)
        return found


class Views(RealRanks):
    def test_batches_that_are_kept_do_not_change(self):
        for ok in self.run_ranks(2, kept):
            self.assertTrue(ok)

    def test_tensors_are_views_of_the_slot(self):
        for n_bytes in self.run_ranks(1, in_one_slot):
            self.assertLess(n_bytes, 1 << 20)


def kept(rank, n):
    loader = (vlm.collate(samples_of(rank, step, 4)) for step in range(6))
    held, copies = [], []
    with DataBalance(None, vlm.MODEL, None, 1, loader) as balancer:
        for _ in range(6):
            for batch in balancer.build_balanced_train_data_iterator(False, 2, 2, 2):
                held.append(batch)
                copies.append({key: plain(value) for key, value in batch.items()})
    return all({key: plain(value) for key, value in batch.items()} == copy for batch, copy in zip(held, copies))


def in_one_slot(rank, n):
    """How far apart the tensors of a micro-batch lie: they are pieces of one slot, not copies."""
    batch = next(iter(_one_step(rank, [vlm.collate(samples_of(rank, 0, 4))], 4, 1)))
    addresses = [value.data_ptr() for value in batch.values() if isinstance(value, torch.Tensor) and value.numel()]
    return max(addresses) - min(addresses)


def _one_step(rank, batches, size, number, **keywords):
    balancer = DataBalance(None, vlm.MODEL, None, 1, iter(batches), **keywords)
    return balancer.build_balanced_train_data_iterator(False, size, size, number)


class Iterators(RealRanks):
    def test_virtual_stages_see_the_same(self):
        for a, b in self.run_ranks(2, two_iterators):
            self.assertEqual(a, b)
            self.assertEqual(4, len(a))

    def test_what_is_not_read_is_given_back(self):
        for found in self.run_ranks(2, half_read):
            self.assertEqual([0, 1, 2, 3], found)


def two_iterators(rank, n):
    """One chunk is a step's length ahead of the other; the loader comes as a list, one a chunk."""
    loaders = [(vlm.collate(samples_of(rank, step, 4)) for step in range(2)) for _ in range(2)]
    seen = [], []
    with DataBalance(2, vlm.MODEL, None, 2, loaders) as balancer:
        for _ in range(2):
            iterators = balancer.build_balanced_train_data_iterator(False, 2, 2, 2)
            assert isinstance(iterators, list) and len(iterators) == 2
            for to, iterator in zip(seen, iterators):
                to += read_step(iterator)
        try:
            balancer.build_balanced_train_data_iterator(False, 2, 2, 2)
            raise AssertionError("more than two steps")
        except StopIteration:
            pass
    return seen


def half_read(rank, n):
    loader = (vlm.collate(samples_of(rank, step, 4)) for step in range(4))
    found = []
    with DataBalance(2, vlm.MODEL, None, 2, loader) as balancer:
        for _ in range(4):
            first, second = balancer.build_balanced_train_data_iterator(False, 1, 1, 4)
            for _ in range(rank + 1):
                next(first)
            found.append(first.info.step)
    return found


class OtherCuts(RealRanks):
    def test_another_micro_batch_size_in_mid_run(self):
        by_rank = self.run_ranks(2, changing)
        self.check_steps(by_rank, [4, 4])
        for steps in by_rank:
            self.assertEqual([2, 2, 4, 4, 1, 1], [len(step) for step in steps])
            self.assertEqual(
                [[2, 2], [2, 2], [1] * 4, [1] * 4, [4], [4]], [[len(one["rows"]) for one in step] for step in steps]
            )

    def test_the_old_algorithms(self):
        for name in ("post_global_balancing_greedy_without_pad", "post_mbs_balancing_greedy_without_pad"):
            with self.subTest(name=name):
                by_rank = self.run_ranks(2, reference, "reference:" + name)
                self.check_steps(by_rank, [4, 4])
                for steps in by_rank:
                    self.assertEqual([2] * 2, [len(step) for step in steps])

    def test_a_capacity_that_is_not_the_micro_batch_size(self):
        by_rank = self.run_ranks(2, reference, "reference:post_global_balancing_greedy_without_pad", 1)
        self.check_steps(by_rank, [4, 4])
        for steps in by_rank:
            self.assertEqual([[2, 2]] * 2, [[len(one["rows"]) for one in step] for step in steps])

    def test_free_counts(self):
        by_rank = self.run_ranks(2, balance_steps, 3, 2, 2, 4, count="free")
        self.check_steps(by_rank, [4, 4])
        counts = [[sum(len(one["rows"]) for one in step) for step in steps] for steps in by_rank]
        self.assertNotEqual([[4] * 3] * 2, counts)
        for steps in by_rank:
            self.assertEqual([2] * 3, [len(step) for step in steps])

    def test_pairs_stay_pairs_and_halves_halves(self):
        for names in self.run_ranks(2, pairs):
            for step in names:
                for micro_batch in step:
                    half = len(micro_batch) // 2
                    self.assertEqual([name + "-" for name in micro_batch[:half]], micro_batch[half:])


def changing(rank, n):
    loader = (vlm.collate(samples_of(rank, step, 4)) for step in range(6))
    steps = []
    with DataBalance(None, vlm.MODEL, None, 1, loader) as balancer:
        for size in (2, 2, 1, 1, 4, 4):
            steps.append(read_step(balancer.build_balanced_train_data_iterator(False, size, size, 4 // size)))
        assert_ended(balancer, 4, 1)
    return steps


def reference(rank, n, name, capacity=2):
    loader = (vlm.collate(samples_of(rank, step, 4)) for step in range(2))
    with DataBalance(None, vlm.MODEL, name, 1, loader) as balancer:
        return [read_step(balancer.build_balanced_train_data_iterator(False, capacity, 2, 2)) for _ in range(2)]


def pairs(rank, n):
    def batch(step):
        chosen = samples_of(rank, step, 4, [(1, 0)])
        rejected = [vlm.sample(f"x{rank}{step}{i}", 1) | {"name": s["name"] + "-"} for i, s in enumerate(chosen)]
        return vlm.collate(chosen + rejected)

    with DataBalance(None, vlm.MODEL, None, 1, map(batch, range(4)), pairwise=True) as balancer:
        sizes = (2, 2, 1, 1)
        return [
            [one["name"] for one in balancer.build_balanced_train_data_iterator(False, s, s, 4 // s)] for s in sizes
        ]


class Golden(RealRanks):
    def test_the_old_algorithms_are_the_old_ones(self):
        """Against rank tables that were recorded from the older system itself: origin and order of each sample."""
        with open(os.path.join(HERE, "..", "data", "golden", "reference_rank_tables.json"), encoding="utf-8") as file:
            tables = json.load(file)
        for name in ("post_global_balancing_greedy_without_pad", "post_mbs_balancing_greedy_without_pad"):
            fitting = [table for table in tables if table["algorithm"] == name and is_small(table)]
            self.assertGreaterEqual(len(fitting), 2, name)
            for table in fitting[:3]:
                with self.subTest(table=table):
                    found = self.run_ranks(len(table["lengths"]), golden, table)
                    self.assertEqual(table["rank_table"], found)


def is_small(table) -> bool:
    lengths = [length for rank in table["lengths"] for length in rank]
    return len(table["lengths"]) <= 4 and len(lengths) <= 40 and all(length % 4 == 0 for length in lengths)


def golden(rank, n, table):
    """One image of as many patches as the table says a sample; [origin rank, index] in delivered order."""
    lengths = table["lengths"][rank]
    ids = torch.full((len(lengths), max(lengths) // 4), vlm.PAD)
    for row, length in zip(ids, lengths):
        row[: length // 4] = vlm.IMAGE
    grids = torch.tensor([[1, 2, length // 2] for length in lengths])
    batch = {"input_ids": ids, "image_grid_thw": grids, "pixel_values": torch.zeros(sum(lengths), 1)}
    options = {key: table[key] for key in ("image_encoder_dp",) if table.get(key)}
    size = table.get("micro_batch_size") or 2
    with DataBalance(None, vlm.MODEL, "reference:" + table["algorithm"], 1, [batch], **options) as balancer:
        batches = balancer.build_balanced_train_data_iterator(False, size, size, None)
        return [[row.origin_rank, row.origin_index] for _ in batches for row in batches.info.rows]


class Weights(RealRanks):
    def test_weights_and_totals(self):
        by_rank = self.run_ranks(3, weighted)
        for kind in ("poise_weight_step", "poise_weight_arrival"):
            total = sum(w * t for rank in by_rank for one in rank for w, t in zip(one[kind], one["poise_loss_tokens"]))
            self.assertAlmostEqual(1.0, total, 12)
        tokens = sum(sum(one["poise_loss_tokens"]) for rank in by_rank for one in rank)
        self.assertEqual({tokens}, {one["totals"] for rank in by_rank for one in rank})


def weighted(rank, n):
    batches = _one_step(rank, [vlm.collate(samples_of(rank, 0, 4, [(1, 0)]))], 2, 2, with_weights=True)
    found = []
    for one in batches:
        assert one["poise_weight_step"].dtype == torch.float64
        assert one["poise_weight_step"].tolist() == batches.info.weights().tolist()
        assert one["poise_loss_tokens"].tolist() == [
            sum(label != -100 for label in row[1:].tolist()) for row in one["labels"]
        ]
        found.append(
            {key: one[key].tolist() for key in ("poise_weight_step", "poise_weight_arrival", "poise_loss_tokens")}
        )
        found[-1]["totals"] = one["poise_totals"].loss_tokens
    return found


class Errors(RealRanks):
    def steps_of(self, n, spoil, *args, **keywords):
        """By rank, what each step was: its micro-batches, or class and text of what was raised."""
        return self.run_ranks(n, spoiled, spoil, args, **keywords)

    def check_named(self, by_rank, step, text, n_steps=4):
        """The step fails on all ranks with the same text, and the others go on."""
        for outcomes in by_rank:
            self.assertEqual(n_steps, len(outcomes), outcomes)
            for i, outcome in enumerate(outcomes):
                if i != step:
                    self.assertEqual("ok", outcome[0], outcome)
        self.assertIn(text, by_rank[0][step][1])
        for outcomes in by_rank:
            self.assertEqual("StepError", outcomes[step][0])
            self.assertEqual(by_rank[0][step][1], outcomes[step][1])

    def test_a_sample_that_does_not_fit_its_grid(self):
        for step in (0, 2):
            self.check_named(self.steps_of(3, bad_grid, 1, step), step, "rank 1: pixel_values: has")

    def test_a_sample_whose_text_was_cut(self):
        self.check_named(self.steps_of(2, cut_text, 1, 1), 1, "rank 1: sample 2: image_grid_thw: ")

    def test_the_loader_raises_on_one_rank(self):
        for step in (0, 2):
            by_rank = self.steps_of(3, raising, 2, step)
            self.assertEqual(("KeyError", "'no such file'"), by_rank[2][step])
            for outcomes in by_rank[:2]:
                self.assertEqual("StepError", outcomes[step][0])
                self.assertIn("the loader of rank 2 raised KeyError: 'no such file'", outcomes[step][1])
            for outcomes in by_rank:
                self.assertEqual(4, len(outcomes))
                self.assertEqual(3, sum(outcome[0] == "ok" for outcome in outcomes))

    def test_both_iterators_get_the_error(self):
        self.check_named(self.steps_of(2, bad_grid, 1, 1, chunks=2), 1, "rank 1: pixel_values: has")

    def test_a_total_of_the_local_batch_is_refused(self):
        by_rank = self.steps_of(2, total, 0, 0)
        self.assertIn("total: is 77, not one value a sample", by_rank[1][0][1])
        self.assertEqual(by_rank[0], by_rank[1])

    def test_a_constant_that_differs_between_ranks(self):
        by_rank = self.steps_of(2, differing, 0, 0, constants=["limit"])
        for outcomes in by_rank:
            self.assertEqual("StepError", outcomes[0][0])
            self.assertIn("limit is declared constant, but its values on two ranks differ", outcomes[0][1])

    def test_keys_that_differ_between_ranks(self):
        by_rank = self.steps_of(2, more_keys, 0, 0)
        for rank, outcomes in enumerate(by_rank):
            self.assertEqual("StepError", outcomes[0][0])
            self.assertIn("the loaders of two ranks give their samples different keys", outcomes[0][1])
            self.assertEqual(rank == 1, "extra" in outcomes[0][1].split("(")[0])

    def test_dtypes_that_differ_between_ranks(self):
        by_rank = self.steps_of(2, other_dtype, 0, 0)
        for outcomes in by_rank:
            self.assertEqual("StepError", outcomes[0][0])
            self.assertIn("pixel_values", outcomes[0][1])
            self.assertIn("bfloat16", outcomes[0][1])

    def test_pad_values_that_are_not_the_loaders(self):
        by_rank = self.steps_of(2, nothing, 0, 0, pad_values={"labels": 0})
        for outcomes in by_rank:
            self.assertIn(
                "labels: is padded with -100, its pad value is 0: pass pad_values={'labels': -100}", outcomes[0][1]
            )

    def test_the_data_ends_on_one_rank(self):
        for outcomes in self.steps_of(3, shorter, 1, 2):
            self.assertEqual(["ok", "ok"], [outcome[0] for outcome in outcomes])

    def test_others_may_go_on(self):
        for outcomes in self.steps_of(3, shorter, 1, 2, end="continue"):
            self.assertEqual(["ok"] * 4, [outcome[0] for outcome in outcomes])

    def test_more_samples_than_the_micro_batches_hold(self):
        for chunks in (0, 2):
            for outcomes in self.steps_of(2, nothing, 0, 0, number=1, chunks=chunks):
                self.assertEqual(4, len(outcomes))
                for step, outcome in enumerate(outcomes):
                    text = f"step {step}: the ranks' samples make 2 micro-batches of 2, num_microbatches is 1"
                    self.assertEqual(("StepError", text), outcome)

    def test_a_last_batch_that_is_shorter(self):
        by_rank = self.run_ranks(2, short_last)
        self.check_steps(by_rank, [3, 1])
        for steps in by_rank:
            self.assertEqual([3], [len(step) for step in steps])


def spoiled(rank, n, spoil, args, chunks=0, number=2, **keywords):
    class Loader:
        """Goes on after an exception, as a generator does not."""

        def __init__(self):
            self.step = -1

        def __next__(self):
            self.step += 1
            if self.step == 4:
                raise StopIteration
            batch = vlm.collate(samples_of(rank, self.step, 4, [(1, 0)]))
            return spoil(rank, self.step, batch, *args)

    outcomes = []
    with DataBalance(chunks or None, vlm.MODEL, None, chunks or 1, Loader(), **keywords) as balancer:
        while len(outcomes) < 10:
            try:
                made = balancer.build_balanced_train_data_iterator(False, 2, 2, number)
                for one in made if chunks else [made]:
                    steps = {one.step for _ in one}
                    assert len(steps) == 1
                outcomes.append(("ok", ""))
            except StopIteration:
                break
            except Exception as error:
                outcomes.append((type(error).__name__, str(error)))
    return outcomes


def bad_grid(rank, step, batch, bad_rank, bad_step):
    if (rank, step) == (bad_rank, bad_step):
        batch["pixel_values"] = batch["pixel_values"][:-1]
    return batch


def cut_text(rank, step, batch, bad_rank, bad_step):
    if (rank, step) == (bad_rank, bad_step):
        row = batch["input_ids"][2]
        row[(row == vlm.IMAGE).nonzero()[0]] = 5
    return batch


def raising(rank, step, batch, bad_rank, bad_step):
    if (rank, step) == (bad_rank, bad_step):
        raise KeyError("no such file")
    return batch


def total(rank, step, batch, *_):
    return batch | {"total": 77}


def differing(rank, step, batch, *_):
    return batch | {"limit": 100 + rank}


def more_keys(rank, step, batch, *_):
    return batch | ({"extra": torch.ones(4)} if rank else {})


def other_dtype(rank, step, batch, *_):
    return batch | ({"pixel_values": batch["pixel_values"].float()} if rank else {})


def nothing(rank, step, batch, *_):
    return batch


def shorter(rank, step, batch, short_rank, n_steps):
    if rank == short_rank and step >= n_steps:
        raise StopIteration
    return batch


class Deaths(RealRanks):
    def test_a_rank_that_is_killed_is_named(self):
        outcomes = self.outcomes(_with_keywords, 3, 3, dying, (), {})
        self.assertEqual(-signal.SIGKILL, outcomes[1].exitcode)
        for rank in (0, 2):
            self.assertEqual("", outcomes[rank].error)
            kind, text = outcomes[rank].value
            self.assertEqual("Aborted", kind)
            self.assertIn("rank 1", text)


def dying(rank, n):
    loader = (vlm.collate(samples_of(rank, step, 2)) for step in range(10**6))
    balancer = DataBalance(None, vlm.MODEL, None, 1, loader)
    step = 0
    try:
        while True:
            for _ in balancer.build_balanced_train_data_iterator(False, 1, 1, 2):
                if rank == 1 and step == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
            step += 1
    except Aborted as error:
        return type(error).__name__, str(error)


class Values(RealRanks):
    def test_constants_and_recomputed_values(self):
        for found in self.run_ranks(2, constant_and_recomputed):
            self.assertTrue(found)


    def test_none_is_none_in_its_own_step(self):
        for found in self.run_ranks(2, now_and_then_none):
            self.assertEqual([True, False] * 3, found)


def now_and_then_none(rank, n):
    """Batches of text alone have None under the media's keys; the step that is read ahead is of the other kind."""

    def batch(step):
        made = vlm.collate(samples_of(rank, step, 2, [(step % 2, 0)]))
        return made if step % 2 else made | {"pixel_values": None, "image_grid_thw": None}

    found = []
    with DataBalance(None, vlm.MODEL, None, 1, map(batch, range(6))) as balancer:
        for _ in range(6):
            for one in balancer.build_balanced_train_data_iterator(False, 2, 2, 1):
                found.append(one["pixel_values"] is None and one["image_grid_thw"] is None)
    return found


def constant_and_recomputed(rank, n):
    batch = vlm.collate(samples_of(rank, 0, 4)) | {"limit": 9, "tokens": 4 * rank, "table": torch.eye(2), "none": None}
    keywords = {"constants": ["limit", "table"], "recompute": {"tokens": lambda b: int(b["attention_mask"].sum())}}
    for one in _one_step(rank, [batch], 2, 2, **keywords):
        assert one["limit"] == 9 and one["none"] is None and torch.equal(one["table"], torch.eye(2))
        assert one["tokens"] == int(one["attention_mask"].sum())
        assert list(one) == list(batch)
    return True


class Warnings(RealRanks):
    def test_one_data_parallel_rank(self):
        (caught,) = self.run_ranks(1, warned, None)
        self.assertEqual(2, sum("one data-parallel rank" in text for _, text in caught))

    def test_an_old_name_is_told_once(self):
        for caught in self.run_ranks(2, warned, "post_global_balancing_greedy_without_pad"):
            told = [kind for kind, text in caught if "reference:post_global_balancing_greedy_without_pad" in text]
            self.assertEqual(["PoiseWarning"], told)


def warned(rank, n, name):
    """What is told when a balancer is made, and made again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        balancers = [DataBalance(None, vlm.MODEL, name, 1, iter([])) for _ in range(2)]
    assert [balancer.image_encoder_dp for balancer in balancers] == [n, n]
    return [(one.category.__name__, str(one.message)) for one in caught if issubclass(one.category, UserWarning)]


class Pages(unittest.TestCase):
    """docs/coming-from: each keyword is there, and the Chinese page says what the English one says."""

    def test_each_keyword_and_the_same_tables(self):
        folder = os.path.join(HERE, "..", "..", "docs")
        pages = []
        for name in ("coming-from.md", "coming-from.zh.md"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                pages.append(file.read())
        for page in pages:
            for keyword in inspect.signature(DataBalance.__init__).parameters:
                if keyword not in NOT_IN_PAGES:
                    self.assertIn(keyword, page)
        english, chinese = ([line.count("|") for line in page.splitlines() if line.startswith("|")] for page in pages)
        self.assertEqual(english, chinese)


# Those of poise.Group, and what only tests and odd launchers need.
NOT_IN_PAGES = (
    "self process_group mesh mesh_dim rank n_ranks replica n_replicas options hetero_parallel batch_key".split()
)

if __name__ == "__main__":
    unittest.main()
