#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BatchSampler: what a step contains is what it would contain without it; only the ranks differ."""

import importlib.util
import os
import random
import unittest

import rig
import poise

SEED = int(os.environ.get("POISE_SEED") or random.SystemRandom().randrange(1 << 32))
HAS_TORCH = importlib.util.find_spec("torch") is not None


def samplers(lengths, size, n, **options):
    return [poise.BatchSampler(lengths, size, rank=rank, n_ranks=n, **options) for rank in range(n)]


def plain(n_samples, size, n, shuffle, seed, epoch, drop_last):
    """What DistributedSampler and BatchSampler give each rank: with torch they say it, without it their rule is written
    out."""
    if HAS_TORCH:
        from torch.utils.data import BatchSampler, DistributedSampler
        found = []
        for rank in range(n):
            sampler = DistributedSampler(range(n_samples), n, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
            sampler.set_epoch(epoch)
            found.append(list(BatchSampler(sampler, size, drop_last)))
        return found
    order = list(range(n_samples))
    if shuffle:
        random.Random(seed + epoch).shuffle(order)
    total = n_samples // n * n if drop_last else -(-n_samples // n) * n
    order = (order * (total // max(1, n_samples) + 1))[:total]
    found = [[order[rank::n][at:at + size] for at in range(0, total // n, size)] for rank in range(n)]
    return [[batch for batch in batches if len(batch) == size or not drop_last] for batches in found]


def step_of(batches, at, accumulate):
    return [[batch for batch in own[at:at + accumulate]] for own in batches]


class Sampler(unittest.TestCase):
    def test_membership_of_every_step(self):
        rng = random.Random(SEED)
        for _ in range(60):
            n_samples, n = rng.randrange(1, 70), rng.randrange(1, 6)
            size, accumulate = rng.randrange(1, 5), rng.randrange(1, 4)
            drop_last, shuffle = rng.random() < 0.5, rng.random() < 0.7
            lengths = [rng.randrange(1, 100) for _ in range(n_samples)]
            made = samplers(lengths, size, n, shuffle=shuffle, seed=9, drop_last=drop_last, accumulate=accumulate)
            for epoch in range(2):
                with self.subTest(seed=SEED, n_samples=n_samples, n=n, size=size, accumulate=accumulate,
                                  drop_last=drop_last,
                                  epoch=epoch):
                    for sampler in made:
                        sampler.set_epoch(epoch)
                    self.compare([list(s) for s in made], plain(n_samples, size, n, shuffle, 9, epoch, drop_last),
                                 accumulate, size)
                    self.assertEqual([len(s) for s in made], [len(own) for own in plain(n_samples, size, n, False, 0, 0,
                                                                                        drop_last)])

    def compare(self, mine, theirs, accumulate, size):
        self.assertEqual([len(own) for own in mine], [len(own) for own in theirs])
        for at in range(0, len(theirs[0]), accumulate):
            a, b = step_of(mine, at, accumulate), step_of(theirs, at, accumulate)
            flat = [sorted(i for own in one for batch in own for i in batch) for one in (a, b)]
            self.assertEqual(*flat)
            counts = [[sum(map(len, own)) for own in one] for one in (a, b)]
            self.assertEqual(*counts)
            self.assertTrue(all(0 < len(batch) <= size for own in a for batch in own))

    def test_it_balances(self):
        rng = random.Random(SEED)
        lengths = [int(rng.lognormvariate(6, 1)) + 1 for _ in range(1024)]
        worst = []
        for made in ([list(s) for s in samplers(lengths, 8, 8)], plain(1024, 8, 8, True, 0, 0, False)):
            worst.append(sum(max(sum(lengths[i] for i in own[at]) for own in made) for at in range(len(made[0]))))
        self.assertLess(worst[0], 0.9 * worst[1], SEED)

    def test_phases(self):
        columns = {"vision": [4, 0, 40, 8] * 4, "llm": [10, 20, 30, 40] * 4}
        by_name = samplers(columns, 2, 2, cost="qwen2.5-vl-7b")
        by_row = samplers(list(zip(columns["vision"], columns["llm"])), 2, 2, cost="qwen2.5-vl-7b")
        self.assertEqual([list(s) for s in by_name], [list(s) for s in by_row])
        text_only = samplers({"llm": columns["llm"]}, 2, 2, cost="qwen2.5-vl-7b")
        self.assertEqual(sorted(i for s in text_only for batch in s for i in batch), list(range(16)))

    def test_resume_at_every_batch(self):
        lengths = [random.Random(SEED + i).randrange(1, 50) for i in range(53)]
        for accumulate in (1, 3):
            sampler = samplers(lengths, 3, 2, seed=4, accumulate=accumulate)[1]
            sampler.set_epoch(2)
            whole = list(sampler)
            for read in range(len(whole) + 1):
                again = samplers(lengths, 3, 2, seed=4, accumulate=accumulate)[1]
                again.load_state_dict(sampler.state_dict(read))
                self.assertEqual(again.epoch, 2)
                again.set_epoch(2)  # as loops over epochs do
                self.assertEqual(list(again), whole[read:])
                self.assertEqual(list(again), whole)  # the next pass is a whole one
        iterator = iter(sampler)
        next(iterator)
        self.assertEqual(sampler.state_dict()["batches"], 1)
        sampler.set_epoch(3)
        self.assertEqual(sampler.state_dict()["batches"], 0)

    def test_resume_on_another_number_of_ranks(self):
        lengths = list(range(1, 97))
        four = samplers(lengths, 2, 4, seed=1)
        state = four[0].state_dict(6)  # 48 samples
        for n, size in ((2, 4), (8, 1), (2, 2), (3, 4)):
            rest = []
            for sampler in samplers(lengths, size, n, seed=1):
                sampler.load_state_dict(state)
                rest += [i for batch in sampler for i in batch]
            wanted = [i for sampler in four for batch in list(sampler)[6:] for i in batch]
            self.assertEqual(sorted(rest), sorted(wanted), (n, size))
        with self.assertRaisesRegex(poise.InvalidInput, "4 ranks.*5 ranks"):
            samplers(lengths, 2, 5, seed=1)[0].load_state_dict(state)

    def test_a_state_of_another_order_is_refused(self):
        state = samplers(range(10), 2, 1, seed=1)[0].state_dict(1)
        for other in (samplers(range(10), 2, 1, seed=2), samplers(range(12), 2, 1, seed=1),
                      samplers(range(10), 2, 1, seed=1, shuffle=False)):
            with self.assertRaises(poise.InvalidInput):
                other[0].load_state_dict(state)

    def test_wrong_arguments(self):
        for lengths, size, options, text in (([1], 0, {}, "batch_size"), ([1], 1, {"generator": "x"}, "generator"),
                                             ([1.5], 1, {}, "integers"), ([(1, 2)], 1, {}, "numbers a sample"),
                                             ({"vision": [1], "llm": [1, 2]}, 1, {"cost": "qwen2.5-vl-7b"}, "as many"),
                                             ([1], 1, {"attention": [1, 2]}, "attention"), ([1], 1, {"count": "free"},
                                                                                            "not known"),
                                             ([1], 1, {"algorithm": "x"}, None)):
            with self.assertRaises(poise.InvalidInput) as caught:
                list(samplers(lengths, size, 1, **options)[0])
            if text:
                self.assertIn(text, str(caught.exception))

    def test_an_empty_dataset(self):
        self.assertEqual(list(samplers([], 2, 2)[0]), [])
        self.assertEqual(len(samplers([], 2, 2)[1]), 0)


if __name__ == "__main__":
    rig.main()
