# SPDX-License-Identifier: Apache-2.0
"""What balance() costs a trainer: the time inside next(), where a step's compute is twice the pipeline's p99.

    make bench-torch [ARGS="--ranks 2 --steps 200"]

The pipeline (loader's worker, exchange, unpickling, collate_fn) is first measured alone: a trainer that computes
nothing, so each next() waits for all of it. Then compute is a sleep of twice its p99. Worth something on an idle
machine only.
"""

from __future__ import annotations

import argparse
import os
import time

import torch

import cluster
import poise


class Data(torch.utils.data.Dataset):
    def __init__(self, rank: int, n: int) -> None:
        self.rank, self.n = rank, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict:
        random = torch.Generator().manual_seed(self.rank * self.n + i)
        patches = int(torch.randint(16, 1024, (1,), generator=random))
        return {
            "pixel_values": torch.zeros(patches, 1176, dtype=torch.bfloat16),
            "input_ids": torch.zeros(patches // 4, dtype=torch.int64),
        }


def length(sample: dict) -> int:
    return len(sample["input_ids"])


def collate(samples: list[dict]) -> dict:
    return {
        "pixel_values": torch.cat([sample["pixel_values"] for sample in samples]),
        "input_ids": torch.nn.utils.rnn.pad_sequence([sample["input_ids"] for sample in samples], batch_first=True),
    }


def run(rank: int, steps: int, samples: int, compute: float) -> list[float]:
    loader = torch.utils.data.DataLoader(
        Data(rank, steps * samples), batch_size=samples, num_workers=1, collate_fn=collate
    )
    waits = []
    iterator = iter(poise.balance(loader, length))
    while True:
        begin = time.perf_counter()
        taken = next(iterator, None)
        waited = time.perf_counter() - begin
        if taken is None:
            return sorted(waits[len(waits) // 10 :])  # the first ones meet cold memory and processes that start
        waits.append(waited)
        if compute:
            time.sleep(compute)
        del taken  # here, or giving back a large batch would be counted as next()'s


def show(what: str, waits: list[float]) -> float:
    p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    print(f"{what:<40} p50 {p50 * 1e6:10.0f} us   p99 {p99 * 1e6:10.0f} us")
    return p99


class Bench(cluster.Case):
    def runTest(self) -> None:  # noqa: N802
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=8)
    arguments = parser.parse_args()
    Bench.setUpClass()
    try:
        bench = Bench()
        print(
            f"{arguments.ranks} ranks x {arguments.samples} samples "
            f"on {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
        )
        alone = bench.ranks(run, arguments.ranks, arguments.steps, arguments.samples, 0.0)
        p99 = show("the pipeline alone, a step", sorted(wait for waits in alone for wait in waits))
        exposed = bench.ranks(run, arguments.ranks, arguments.steps, arguments.samples, 2 * p99)
        show(f"in next(), compute {2e3 * p99:.1f} ms", sorted(wait for waits in exposed for wait in waits))
    finally:
        Bench.tearDownClass()


if __name__ == "__main__":
    main()
