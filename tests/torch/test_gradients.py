# SPDX-License-Identifier: Apache-2.0
"""Training is the same: gradients and losses of DistributedDataParallel with samples exchanged, and without."""

from __future__ import annotations

import contextlib
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cluster
import poise

RANKS = 4
BATCH = 3
WORDS = 11
torch.set_default_dtype(torch.float64)


def make(rank: int, i: int) -> dict:
    """Sizes differ by 20x, answers by 10x. Rank 2 has no loss tokens at all; every fourth sample has no image."""
    random = torch.Generator().manual_seed(1000 * rank + i)
    patches = 0 if i % 4 == 3 else int(torch.randint(1, 60, (1,), generator=random)) ** 2 // 20
    n = int(torch.randint(3, 20, (1,), generator=random))
    ids = torch.randint(0, WORDS, (n,), generator=random)
    labels = (ids + 1) % WORDS  # something to learn
    labels[: n if rank == 2 else int(torch.randint(1, n, (1,), generator=random))] = -100
    return {"pixels": torch.rand(patches, 6, generator=random), "ids": ids, "labels": labels}


class Data(torch.utils.data.Dataset):
    def __init__(self, rank: int, n: int) -> None:
        self.rank, self.n = rank, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict:
        return make(self.rank, i)


class Model(torch.nn.Module):
    """Encodes an image, adds it to the words, predicts. Samples meet nowhere, as in any model that poise is for."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        self.words = torch.nn.Embedding(WORDS, 8)
        self.head = torch.nn.Linear(8, WORDS)

    def forward(self, samples: list[dict]) -> torch.Tensor:
        """[samples] summed loss of each one's labelled tokens."""
        sums = [
            torch.zeros(1) + 0 * sum(p.sum() for p in self.parameters())
        ]  # each parameter takes part, whatever is in it
        for sample in samples:
            hidden = self.words(sample["ids"])
            if len(sample["pixels"]):
                hidden = hidden + self.vision(sample["pixels"]).mean(0)
            loss = torch.nn.functional.cross_entropy(
                self.head(torch.tanh(hidden)), sample["labels"], ignore_index=-100, reduction="sum"
            )
            sums.append(loss[None])
        return torch.cat(sums)[1:] if samples else sums[0]


def same(samples: list[dict]) -> list[dict]:
    return samples


def tokens(sample: dict) -> int:
    return int((sample["labels"] != -100).sum())


def patches(sample: dict) -> int:
    return len(sample["pixels"]) + len(sample["ids"])


def unbalanced(loader, kind: str, accumulate: int):
    """Micro-batches as (samples, weights, last of its step), weighed as a loop without poise does."""
    batches = list(loader)
    for begin in range(0, len(batches), accumulate):
        step = batches[begin : begin + accumulate]
        total = torch.tensor(float(sum(tokens(s) for batch in step for s in batch)))
        dist.all_reduce(total)
        for k, batch in enumerate(step):
            mine = sum(tokens(s) for s in batch)
            weight = RANKS / total if kind == "step" else torch.tensor(1.0 / (max(mine, 1) * len(step)))
            yield batch, weight.expand(len(batch)), k + 1 == len(step)


def balanced(loader, kind: str, accumulate: int, count: str):
    for batch, info in poise.balance(
        loader,
        patches,
        loss_tokens=tokens,
        accumulate=accumulate,
        with_info=True,
        count=count,
        empty=list,
        tolerance_ppm=1,
    ):
        moved.append(info.totals.samples_moved)
        weights = poise.scale_for_mean(info.weights(kind), info.n_ranks)  # DDP averages
        yield batch, weights, info.micro_batch + 1 == info.n_micro_batches


moved: list[int] = []


def train(rank: int, batches) -> tuple[list[float], list[float]]:
    """The loss of each step and the gradient of the first."""
    torch.manual_seed(7)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    losses, gradient, step_loss = [], [], torch.zeros(())
    for samples, weights, last in batches:
        with contextlib.nullcontext() if last else model.no_sync():
            sums = model(samples)
            loss = (sums * weights).sum() if samples else sums.sum()
            loss.backward()
        step_loss += loss.detach()
        if not last:
            continue
        gradient = gradient or torch.cat([p.grad.reshape(-1) for p in model.parameters()]).tolist()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(step_loss)
        losses.append(float(step_loss) / RANKS)
        step_loss = torch.zeros(())
    return losses, gradient


def comparing(rank, kinds, steps):
    dist.init_process_group("gloo")
    found = []
    for kind, accumulate, count in kinds:

        def loader():
            return torch.utils.data.DataLoader(
                Data(rank, steps * accumulate * BATCH), batch_size=BATCH, collate_fn=same
            )

        want = train(rank, unbalanced(loader(), kind, accumulate))
        moved.clear()
        have = train(rank, balanced(loader(), kind, accumulate, count))
        found.append((want, have, sum(moved)))
    dist.destroy_process_group()
    return found


class Training(cluster.Case):
    def close(self, want: list[float], have: list[float], relative: float) -> None:
        want, have = torch.tensor(want), torch.tensor(have)
        self.assertEqual(want.shape, have.shape)
        self.assertLess(float((want - have).norm() / want.norm()), relative)

    def test_gradients_are_those_of_the_unbalanced_run(self):
        kinds = [
            (kind, accumulate, count)
            for kind in ("step", "arrival")
            for accumulate in (1, 3)
            for count in ("equal", "free")
        ]
        for result in self.ranks(comparing, RANKS, kinds, 1):
            for kind, (want, have, n_moved) in zip(kinds, result):
                with self.subTest(kind=kind):
                    self.assertGreater(n_moved, 0)
                    self.assertGreater(torch.tensor(want[1]).norm(), 1e-3)
                    self.close(want[1], have[1], 1e-6)
                    self.close(want[0], have[0], 1e-9)

    def test_the_loss_curve_over_50_steps(self):
        kinds = [("step", 1, "free"), ("arrival", 2, "equal")]
        for result in self.ranks(comparing, RANKS, kinds, 50):
            for want, have, _ in result:
                self.assertEqual(50, len(want[0]))
                self.assertLess(sum(want[0][-10:]), 0.95 * sum(want[0][:10]))  # it learns
                self.close(want[0], have[0], 1e-6)
                self.assertAlmostEqual(want[0][-1], have[0][-1], 6)


if __name__ == "__main__":
    unittest.main()
