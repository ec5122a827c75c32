# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what was consumed is not seen again, what was only prefetched is."""

from __future__ import annotations

import itertools
import unittest

import torch
from torch.utils.data import DataLoader

import cluster
import loading
import poise
from loading import length


class Stateful:
    """A loader that saves where it stands, as those of torchdata do: lists of samples in an order that its own state
    makes."""

    def __init__(self, rank: int, n: int = 10) -> None:
        self.rank, self.n, self.at, self.epoch = rank, n, 0, 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self):
        return self

    def __next__(self) -> list[dict]:
        if self.at == self.n:
            self.at, self.epoch = 0, self.epoch + 1
            raise StopIteration
        self.at += 1
        base = 1000 * self.rank + 500 * self.epoch + 4 * (self.at - 1)
        return [loading.make(base + i) for i in range(4)]

    def state_dict(self) -> dict:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class StatefulDataLoader(DataLoader):
    """The same as a DataLoader's child; what it yielded last is its state, whatever its workers have prefetched."""

    yielded = 0
    resume_at = 0

    def __iter__(self):
        first, self.resume_at = self.resume_at, 0
        for i, batch in enumerate(super().__iter__()):
            if i >= first:
                self.yielded = i + 1
                yield batch
        self.yielded = 0

    def state_dict(self) -> dict:
        return {"yielded": self.yielded}

    def load_state_dict(self, state: dict) -> None:
        self.resume_at = state["yielded"]


def make(rank: int, kind: str):
    if kind == "iterable":
        return Stateful(rank), {"collate_fn": ids, "micro_batch_size": 4}
    if kind == "stateful workers":
        return StatefulDataLoader(loading.Samples(rank, 40), batch_size=4, num_workers=2, collate_fn=ids), {}
    generator = torch.Generator().manual_seed(rank)  # a plain loader: its batches are left out by their number
    workers = 2 if kind == "plain workers" else 0
    return DataLoader(
        loading.Samples(rank, 40), batch_size=4, shuffle=True, generator=generator, num_workers=workers, collate_fn=ids
    ), {}


def ids(samples: list[dict]) -> list[int]:
    assert all(loading.same(sample) for sample in samples)
    return [sample["id"] for sample in samples]


def whole(rank: int, kind: str, accumulate: int):
    """Two epochs, and the state behind each batch."""
    loader, keywords = make(rank, kind)
    balanced = poise.balance(loader, length, accumulate=accumulate, prefetch_depth=4, **keywords)
    found, states = [], [balanced.state_dict()]
    for _ in range(2):
        epoch = []
        for batch in balanced:
            epoch.append(batch)
            states.append(balanced.state_dict())
        found.append(epoch)
        states.append(balanced.state_dict())  # behind the epoch's end
    return found, states


def rest(rank: int, kind: str, accumulate: int, states):
    """What a new process sees that begins with a state."""
    loader, keywords = make(rank, kind)
    if states[rank]["epoch"] and kind.startswith("plain"):
        torch.empty((), dtype=torch.int64).random_(
            generator=loader.generator
        )  # the user's to restore: what the first epoch drew
        list(loader.batch_sampler)
    balanced = poise.balance(loader, length, accumulate=accumulate, **keywords)
    balanced.load_state_dict(states[rank])
    first = list(balanced)
    second = list(itertools.islice(balanced, 2))
    return first, second, balanced.info.step


class Exact(cluster.Case):
    def check(self, kind: str, accumulate: int, cuts) -> None:
        full = self.ranks(whole, 2, kind, accumulate)
        self.assertEqual(10, len(full[0][0][0]))
        for cut in cuts:
            with self.subTest(kind=kind, accumulate=accumulate, cut=cut):
                states = [result[1][cut] for result in full]
                for rank, (first, second, _) in enumerate(self.ranks(rest, 2, kind, accumulate, states)):
                    epochs, _ = full[rank]
                    if cut <= 10:
                        self.assertEqual(epochs[0][cut:], first)
                    else:
                        self.assertEqual(epochs[1][cut - 11 :], first)
                    if kind != "iterable":
                        continue
                    if cut <= 10:  # the epoch behind it is the one that would have come
                        self.assertEqual(epochs[1][:2], second)

    def test_the_loaders_own_state_as_of_the_batch_consumed(self):
        self.check("iterable", 1, (0, 1, 3, 10))
        self.check("stateful workers", 1, (4,))

    def test_a_plain_loader_leaves_out_what_was_consumed(self):
        self.check("plain", 1, (3,))
        self.check("plain workers", 1, (7,))

    def test_in_the_middle_of_an_accumulated_step(self):
        self.check("iterable", 3, (4,))

    def test_behind_an_epochs_end(self):
        full = self.ranks(whole, 2, "iterable", 1)
        state = full[0][1][11]
        self.assertEqual((10, 1, 0), (state["step"], state["epoch"], state["batches"]))
        states = [result[1][11] for result in full]
        for rank, (first, _, _) in enumerate(self.ranks(rest, 2, "iterable", 1, states)):
            self.assertEqual(full[rank][0][1], first)


# ---------------------------------------------------------------------------------------------- another number of ranks


def a_state(rank, loader_state):
    balanced = poise.balance(Stateful(rank), length, collate_fn=ids, loader_state=loader_state)
    list(itertools.islice(balanced, 3))
    return balanced.state_dict()


def with_state(rank, state, loader_state):
    balanced = poise.balance(Stateful(rank), length, collate_fn=ids, loader_state=loader_state)
    try:
        balanced.load_state_dict(state)
    except poise.InvalidInput as error:
        return str(error)
    return [balanced.info.step for _ in itertools.islice(balanced, 2)]


class Elsewhere(cluster.Case):
    def test_a_loaders_state_is_refused_on_another_number_of_ranks(self):
        state = self.ranks(a_state, 2, True)[1]
        self.assertEqual((3, 1, 2), (state["step"], state["rank"], state["n_ranks"]))
        for text in self.ranks(with_state, 3, state, True):
            self.assertRegex(text, "rank 1 of 2, and this is rank . of 3: .*loader_state=False")
        self.assertEqual([[3, 4]] * 3, self.ranks(with_state, 3, state, False))

    def test_poises_own_state_is_good_on_any(self):
        state = self.ranks(a_state, 2, False)[0]
        self.assertEqual({"poise": 1, "step": 3, "micro_batch": 0, "epoch": 0}, state)
        self.assertEqual([[3, 4]] * 3, self.ranks(with_state, 3, state, True))

    def test_what_is_no_state_is_refused(self):
        balanced = poise.balance([[1]], lambda sample: 1, rank=0, n_ranks=1)
        for wrong in ({}, {"poise": 99}, None):
            with self.assertRaisesRegex(poise.InvalidInput, "no state of balance"):
                balanced.load_state_dict(wrong)


if __name__ == "__main__":
    unittest.main()
