# SPDX-License-Identifier: Apache-2.0
"""balance() with a real poised: what goes in comes out, in every way that loops are written."""

from __future__ import annotations

import itertools
import os
import threading
import unittest
import warnings

import torch

import cluster
import loading
import poise
from loading import length, loader_of


def ids_of(balanced) -> list[list[int]]:
    return [batch["id"] for batch in balanced]


def expected(n_ranks: int, n: int = 24) -> list[int]:
    return [1000 * rank + i for rank in range(n_ranks) for i in range(n)]


def flat(results) -> list[int]:
    return sorted(ident for batches in results for batch in batches for ident in batch)


# ----------------------------------------------------------------------------------------------------------- plain loop


def epochs(rank, workers, n_epochs, keywords, lengths=length):
    balanced = poise.balance(loader_of(rank, workers, persistent_workers=workers > 0, **keywords), lengths)
    assert len(balanced) == 6 and balanced.batch_size == 4
    found = []
    for _ in range(n_epochs):
        found.append(ids_of(balanced))
    return found


def local_function(rank, workers):
    """What a spawned worker cannot be given: its samples are measured by the trainer's process."""
    return epochs(
        rank, workers, 1, {"multiprocessing_context": "spawn"} if workers else {}, lambda sample: len(sample["pixels"])
    )


def costs(rank, mode):
    before, after = [], []
    for batch, info in poise.balance(loader_of(rank), length, with_info=True, mode=mode):
        assert len(info.rows) == len(batch["id"]) and info.n_micro_batches == 1 and info.n_ranks == 4
        assert info.totals.n_samples == 16
        for row, ident in zip(info.rows, batch["id"]):
            assert ident == 1000 * row.origin_rank + 4 * info.step + row.origin_index
            assert row.tag == 4 * info.step + row.origin_index and row.loss_tokens == 1
            assert row.weight_step == 1 / 16 and abs(row.weight_arrival - 1 / 16) < 1e-15
        assert info.weights().dtype == torch.float64 and info.weights("arrival").tolist() == [
            row.weight_arrival for row in info.rows
        ]
        after.append(batch["cost"])
        before.append(sum(length(loading.make(1000 * rank + 4 * info.step + i)) for i in range(4)))
    return before, after


class PlainLoop(cluster.Case):
    def test_all_samples_once_whatever_the_workers(self):
        reference = self.ranks(epochs, 2, 0, 2, {})
        for epoch in (0, 1):
            self.assertEqual(expected(2), flat([result[epoch] for result in reference]))
        self.assertNotEqual([[list(range(4 * i, 4 * i + 4)) for i in range(6)]] * 2, reference[0])  # something moved
        self.assertEqual(reference, self.ranks(epochs, 2, 4, 2, {}))

    def test_spawned_workers_give_the_same(self):
        self.assertEqual(
            self.ranks(epochs, 2, 0, 1, {}), self.ranks(epochs, 2, 1, 1, {"multiprocessing_context": "spawn"})
        )

    def test_a_function_that_cannot_be_sent_to_workers(self):
        self.assertEqual(self.ranks(local_function, 2, 0), self.ranks(local_function, 2, 1))

    def test_it_balances_and_says_what_is_where(self):
        worst_before, worst_after = 0, 0
        results = self.ranks(costs, 4, "on")
        for step in range(6):
            worst_before += max(result[0][step] for result in results)
            worst_after += max(result[1][step] for result in results)
        self.assertLess(worst_after, worst_before)
        mean = sum(sum(result[0]) for result in results) / 4
        self.assertLess(worst_after / mean, 1.10)
        for before, after in self.ranks(costs, 4, "shadow"):
            self.assertEqual(before, after)


# ------------------------------------------------------------------------------------------------------ plain iterables


def plain_lists(rank):
    steps = [[loading.make(1000 * rank + 4 * step + i) for i in range(4)] for step in range(6)]
    found = []
    for samples in poise.balance(steps, length):
        assert all(loading.same(sample) for sample in samples)
        found.append([sample["id"] for sample in samples])
    return found


def iterable_dataset(rank):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(loading.make(1000 * rank + i) for i in range(24))

    return ids_of(
        poise.balance(
            torch.utils.data.DataLoader(Stream(), batch_size=4, collate_fn=loading.collate, num_workers=1), length
        )
    )


class OtherSources(cluster.Case):
    def test_an_iterable_of_lists(self):
        self.assertEqual(expected(2), flat(self.ranks(plain_lists, 2)))

    def test_an_iterable_dataset(self):
        self.assertEqual(expected(2), flat(self.ranks(iterable_dataset, 2)))

    def test_what_has_no_batches_of_samples_is_refused(self):
        with self.assertRaisesRegex(poise.InvalidInput, "batch_size=None"):
            poise.balance(loader_of(0, batch_size=None, collate_fn=None), length)
        for wrong in ({"accumulate": 0}, {"cost": "qwen"}):
            with self.assertRaises(poise.InvalidInput):
                poise.balance(loader_of(0), length, **wrong)


# --------------------------------------------------------------------------------------------------------- accumulation


def accumulating(rank, keywords, n):
    balanced = poise.balance(loader_of(rank, n=n), length, accumulate=3, with_info=True, **keywords)
    n_batches = 0
    found = []
    for batch, info in balanced:
        found.append((info.step, info.micro_batch, info.n_micro_batches, batch["id"]))
        n_batches += 1
    assert n_batches == len(balanced), (n_batches, len(balanced))
    return found


class Accumulation(cluster.Case):
    def test_k_loader_batches_make_a_step(self):
        results = self.ranks(accumulating, 2, {}, 24)
        self.assertEqual([(s, m, 3) for s in range(2) for m in range(3)], [found[:3] for found in results[0]])
        self.assertEqual(expected(2), flat([[found[3] for found in result] for result in results]))
        for result in results:
            self.assertTrue(all(len(found[3]) == 4 for found in result))

    def test_the_last_step_is_shorter_or_left_out(self):
        results = self.ranks(accumulating, 2, {}, 18)  # batches of 4 4 4 | 4 2
        self.assertEqual([3, 3, 3, 2, 2], [found[2] for found in results[0]])
        self.assertEqual(expected(2, 18), flat([[found[3] for found in result] for result in results]))
        results = self.ranks(accumulating, 2, {"drop_last": True}, 18)
        self.assertEqual([3, 3, 3], [found[2] for found in results[0]])
        self.assertEqual(expected(2, 12), flat([[found[3] for found in result] for result in results]))

    def test_free_counts_are_cut_by_cost(self):
        results = self.ranks(accumulating, 2, {"count": "free"}, 24)
        self.assertEqual([3] * 6, [found[2] for found in results[0]])
        self.assertEqual(expected(2), flat([[found[3] for found in result] for result in results]))


# --------------------------------------------------------------------------------------------------------- ends of data


def ending(rank, sizes, keywords):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        balanced = poise.balance(loader_of(rank, n=sizes[rank]), length, **keywords)
        found = [batch if batch is None else batch["id"] for batch in balanced]
    return found, [str(w.message) for w in caught if issubclass(w.category, poise.PoiseWarning)]


def no_samples():
    return None


class Ends(cluster.Case):
    def test_stop_ends_all_with_the_first_and_says_what_was_dropped(self):
        (a, warned_a), (b, warned_b) = self.ranks(ending, 2, (24, 8), {})
        self.assertEqual((2, 2), (len(a), len(b)))
        self.assertEqual(sorted(list(range(8)) + list(range(1000, 1008))), flat([a, b]))
        self.assertRegex(" ".join(warned_a), r"ended with step 2 as another rank has no more data; \d+ samples")
        self.assertEqual([], warned_b)

    def test_continue_goes_on_until_all_have_ended(self):
        (a, _), (b, _) = self.ranks(ending, 2, (24, 8), {"end": "continue", "empty": no_samples})
        self.assertEqual((6, 6), (len(a), len(b)))
        self.assertEqual(4, sum(batch is None for batch in b))
        self.assertEqual(sorted(list(range(24)) + list(range(1000, 1008))), flat([[x for x in r if x] for r in (a, b)]))

    def test_uneven_last_batches(self):
        (a, _), (b, _) = self.ranks(ending, 2, (7, 5), {})
        self.assertEqual(([4, 3], [4, 1]), ([len(x) for x in a], [len(x) for x in b]))
        self.assertEqual(sorted(list(range(7)) + list(range(1000, 1005))), flat([a, b]))

    def test_a_micro_batch_without_samples_needs_a_word(self):
        outcomes = self.outcomes(ending, 2, (8, 4), {"end": "continue"})
        self.assertEqual("", outcomes[0].error)
        self.assertRegex(outcomes[1].error, r"micro-batch 0 of step 1 has no samples on rank 1: .*empty=")


# ------------------------------------------------------------------------------------------- leaving loops, many epochs


def leaving(rank, workers):
    balanced = poise.balance(loader_of(rank, workers, persistent_workers=workers > 1), length)
    first = [batch["id"] for batch in itertools.islice(balanced, 2)]
    for batch in balanced:
        second = batch["id"]
        step = balanced.info.step
        break
    third = ids_of(balanced)
    balanced.close()
    balanced.close()
    return first, second, step, third


def many_epochs(rank):
    class Sampler(torch.utils.data.SequentialSampler):
        def set_epoch(self, epoch):
            self.epoch = epoch

    dataset = loading.Samples(rank, 8)
    read = []
    dataset.__class__ = type(
        "Counting",
        (loading.Samples,),
        {"__getitem__": lambda self, i: (read.append(i), loading.Samples.__getitem__(self, i))[1]},
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=Sampler(dataset), collate_fn=loading.collate)
    balanced = poise.balance(loader, length)
    for epoch in range(15):
        balanced.set_epoch(epoch)
        assert (dataset.epoch, loader.sampler.epoch) == (epoch, epoch)
        assert len(ids_of(balanced)) == 2
        assert balanced.info.step == 2 * epoch + 1
        assert len(read) == 8 * (epoch + 1)  # prefetch has not begun the next epoch
    return len(os.listdir("/proc/self/fd"))


def two_at_once(rank):
    # The inner loader forks its workers while the outer group and its threads are alive.
    train, evaluate = poise.balance(loader_of(rank, 1), length), poise.balance(loader_of(rank + 2, 1, n=8), length)
    seen, inner = [], []
    for batch in train:
        seen.append(batch["id"])
        inner.append(ids_of(evaluate))
    return seen, inner


def in_a_child(rank):
    iterator = iter(poise.balance(loader_of(rank), length))
    next(iterator)
    pid = os.fork()
    if pid == 0:
        try:
            next(iterator)
        except poise.UseAfterFork:
            os._exit(7)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, len(list(iterator))


class Threads:
    """A loader that says which thread runs it."""

    def __init__(self, rank):
        self.rank, self.at, self.seen = rank, 0, []

    def __iter__(self):
        self.seen.append(("iter", threading.current_thread() is threading.main_thread()))
        return self

    def __next__(self):
        self.seen.append(("next", threading.current_thread() is threading.main_thread()))
        self.at += 1
        if self.at > 5:
            raise StopIteration
        return [loading.make(1000 * self.rank + self.at)]


def in_threads(rank, background):
    loader = Threads(rank)
    assert len(list(poise.balance(loader, length, background=background))) == 5
    return sorted(set(loader.seen))


def replicas(process):
    """Two ranks of two replicas each: those of one rank read the same data and must see the same micro-batches."""
    rank, replica = divmod(process, 2)
    balanced = poise.balance(loader_of(rank, 1), length, rank=rank, n_ranks=2, replica=replica, n_replicas=2)
    return ids_of(balanced)


class Loops(cluster.Case):
    def test_who_runs_the_loader(self):
        for seen in self.ranks(in_threads, 2, None):
            self.assertEqual([("iter", True), ("next", True)], seen)
        for seen in self.ranks(in_threads, 2, True):
            self.assertEqual([("iter", True), ("next", False)], seen)

    def test_replicas_see_the_same(self):
        results = self.ranks(replicas, 4)
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[2], results[3])
        self.assertEqual(expected(2), flat([results[0], results[2]]))

    def test_break_and_close_with_steps_in_flight(self):
        for workers in (0, 1, 2):
            for first, second, step, third in self.ranks(leaving, 2, workers):
                self.assertEqual(2, len(first))
                self.assertEqual((first[0], 2), (second, step))
                self.assertEqual(first, third[:2])
                self.assertEqual(6, len(third))

    def test_many_epochs_leave_nothing_behind(self):
        for n_descriptors in self.ranks(many_epochs, 2):
            self.assertLess(n_descriptors, 40)

    def test_evaluation_inside_of_training(self):
        results = self.ranks(two_at_once, 2)
        self.assertEqual(expected(2), flat([seen for seen, _ in results]))
        for i in range(6):
            self.assertEqual(
                [2000 + j for j in range(8)] + [3000 + j for j in range(8)], flat([inner[i] for _, inner in results])
            )

    def test_use_after_fork_is_an_exception(self):
        self.assertEqual([(7, 5), (7, 5)], self.ranks(in_a_child, 2))


# ------------------------------------------------------------------------------------------------------ keeping batches


def keeping(rank, workers):
    balanced = poise.balance(loader_of(rank, workers, n=48, collate_fn=loading.keep), length, memory_budget=64 << 20)
    kept = list(itertools.islice(balanced, 12))
    assert all(loading.same(sample) for batch in kept for sample in batch)
    return [[sample["id"] for sample in batch] for batch in kept]


def saved_for_backward(rank):
    weight = torch.ones(7, requires_grad=True)
    total, want = 0.0, torch.zeros(7)
    for samples in poise.balance(loader_of(rank, n=32, collate_fn=loading.keep), length):
        for sample in samples:
            total = total + (sample["pixels"] * weight).sum()  # saves the received tensor itself
            want += loading.make(sample["id"])["pixels"].sum(0)
    total.backward()
    return torch.allclose(weight.grad, want, rtol=1e-5)


class Keeping(cluster.Case):
    def test_a_list_of_batches_has_that_many_contents(self):
        for workers in (0, 2):
            results = self.ranks(keeping, 2, workers)
            self.assertEqual(expected(2, 48), flat(results))

    def test_saved_for_backward(self):
        self.assertEqual([True, True], self.ranks(saved_for_backward, 2))


# -------------------------------------------------------------------------------------------------- vision and language


def vision(rank):
    random = torch.Generator().manual_seed(rank)

    def sample(i):
        n = int(torch.randint(5, 200, (1,), generator=random))
        made = {"id": 1000 * rank + i, "input_ids": torch.zeros(n, dtype=torch.int64), "labels": torch.full((n,), -100)}
        made["labels"][-3:] = 5
        if rank < 2:  # ranks 2 and 3 are text-only
            side = int(torch.randint(100, 1200, (1,), generator=random))
            made["images"] = [(side, side)] * (i % 3)
        return made

    steps = [[sample(8 * step + i) for i in range(8)] for step in range(4)]
    found = []
    for samples, info in poise.balance(
        steps, "qwen2-vl", "qwen2-vl-7b", loss_tokens="labels", with_info=True, count="free"
    ):
        assert info.totals.loss_tokens == 3 * 32 and all(row.loss_tokens == 3 for row in info.rows)
        found.append(
            ([s["id"] for s in samples], info.totals.cost_before, info.totals.cost_after, info.totals.cost_mean)
        )
    return found


class Models(cluster.Case):
    def test_text_only_ranks(self):
        results = self.ranks(vision, 4)
        self.assertEqual(expected(4, 32), flat([[step[0] for step in result] for result in results]))
        for _, before, after, mean in results[0]:
            self.assertGreater(before, 1.3 * mean)
            self.assertLess(after, 1.2 * mean)


if __name__ == "__main__":
    unittest.main()
