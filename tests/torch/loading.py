# SPDX-License-Identifier: Apache-2.0
"""Datasets and loaders that the tests of balance() share. At module level, so that worker processes can be spawned."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

SPREAD = 400  # lengths are 1 to this


class Samples(Dataset):
    """n samples of one rank, each different and told by its id: 1,000 x rank + index."""

    def __init__(self, rank: int, n: int = 24, bad: int | None = None) -> None:
        self.rank, self.n, self.bad = rank, n, bad
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict:
        if i == self.bad:
            raise ValueError(f"image {i} is broken")
        return make(1000 * self.rank + i)


def make(ident: int) -> dict:
    """A sample by its id alone, so that whoever gets it can check every byte."""
    random = torch.Generator().manual_seed(ident)
    n = int(torch.randint(1, SPREAD, (1,), generator=random))
    return {
        "id": ident,
        "pixels": torch.rand(n, 7, generator=random),
        "ids": torch.randint(0, 1 << 40, (n,), generator=random),
        "nested": {"raw": bytes([ident % 256]) * n, "name": f"sample {ident}", "list": [ident, (n, None)]},
    }


def same(sample: dict) -> bool:
    """The sample is what its id says."""
    want = make(sample["id"])
    return (
        torch.equal(want["pixels"], sample["pixels"])
        and torch.equal(want["ids"], sample["ids"])
        and want["nested"] == sample["nested"]
        and sample["pixels"].dtype == torch.float32
    )


def length(sample: dict) -> int:
    return len(sample["pixels"])


def collate(samples: list[dict]) -> dict:
    """Checks and pads; what a user's collate_fn does."""
    assert all(same(sample) for sample in samples)
    padded = torch.nn.utils.rnn.pad_sequence([sample["ids"] for sample in samples], batch_first=True)
    return {"id": [sample["id"] for sample in samples], "ids": padded, "cost": sum(map(length, samples))}


def keep(samples: list[dict]) -> list[dict]:
    """A collate_fn that copies nothing."""
    return samples


def loader_of(
    rank: int, workers: int = 0, n: int = 24, batch_size: int = 4, bad: int | None = None, **keywords
) -> DataLoader:
    keywords.setdefault("collate_fn", collate)
    return DataLoader(Samples(rank, n, bad), batch_size=batch_size, num_workers=workers, **keywords)
