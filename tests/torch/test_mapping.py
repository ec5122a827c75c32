# SPDX-License-Identifier: Apache-2.0
"""The rank mapping of plan-only groups, carried out by the trainer's own collectives over gloo."""

from __future__ import annotations

import unittest

import torch
import torch.distributed as dist

import cluster
import poise


def rows_of(rank: int, step: int, empty_rank: int | None) -> list[int]:
    random = torch.Generator().manual_seed(100 * step + rank)
    if rank == empty_rank:
        return []
    n = int(torch.randint(0, 6, (1,), generator=random))
    return [int(torch.randint(0, 40, (1,), generator=random)) for _ in range(n)]


def exchanging(rank, n, empty_rank, count):
    dist.init_process_group("gloo")
    found = []
    group = poise.Group(group="images", plan_only=True, cost="length_squared", count=count, tolerance_ppm=1)
    for step in range(5):
        rows = rows_of(rank, step, empty_rank)
        group.submit(step, [poise.Sample(length=n_rows, nbytes=12 * n_rows, tag=i) for i, n_rows in enumerate(rows)])
        batch = group.next()
        exchange = poise.RankMapping(batch.mapping, n).rows(rows)
        random = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(sum(rows), 3, generator=random).requires_grad_()
        y = exchange.forward(x)
        assert y.shape == (sum(exchange.rows_in), 3)
        # Each delivered sample is what its origin sent, in delivered order.
        at = 0
        for origin, size in zip(batch.mapping.incoming, exchange.rows_in):
            theirs = rows_of(origin.rank, step, empty_rank)
            sent = torch.randn(sum(theirs), 3, generator=torch.Generator().manual_seed(1000 * step + origin.rank))
            begin = sum(theirs[: origin.index])
            assert size == theirs[origin.index]
            assert torch.equal(y[at : at + size], sent[begin : begin + size])
            at += size
        back = exchange.reverse(y)
        assert torch.equal(back, x) and back.dtype == x.dtype
        # The gradient takes the same way: of sum(w * reverse(forward(x))) it is w, bit for bit.
        weight = torch.randn(x.shape, generator=random)
        (gradient,) = torch.autograd.grad((back * weight).sum(), x)
        assert torch.equal(gradient, weight)
        # And of forward alone: what the new owner's gradient is at that row.
        coordinate = exchange.forward(torch.arange(sum(rows), dtype=torch.float64)[:, None] + 1000 * rank)
        (gradient,) = torch.autograd.grad(exchange.forward(x.double()).mul(coordinate).sum(), x)
        expected = (torch.arange(sum(rows), dtype=torch.float64)[:, None] + 1000 * rank).float().expand(-1, 3)
        assert torch.equal(gradient, expected)
        half = exchange.reverse(exchange.forward(x.detach().to(torch.bfloat16)))
        assert torch.equal(half, x.detach().to(torch.bfloat16))
        found.append((sum(rows), y.shape[0], batch.totals.samples_moved))
        del batch
    group.close()
    dist.destroy_process_group()
    return found


def wrong_rows(rank):
    dist.init_process_group("gloo")
    mapping = poise.Mapping([poise.Incoming(rank, 0, 0, 0)], [poise.Outgoing(rank, 0, 0, 0)])
    mapped = poise.RankMapping(mapping, 2)
    texts = []
    for rows in ([1, 2], [-1]):
        try:
            mapped.rows(rows)
        except poise.InvalidInput as error:
            texts.append(str(error))
    exchange = mapped.rows([3])
    try:
        exchange.forward(torch.zeros(4, 2))
    except poise.InvalidInput as error:
        texts.append(str(error))
    dist.destroy_process_group()
    return texts


class Mapping(cluster.Case):
    def test_reverse_of_forward_is_the_same_bit_for_bit(self):
        for n, empty_rank, count in ((2, None, "equal"), (3, 1, "free")):
            results = self.ranks(exchanging, n, n, empty_rank, count)
            for step in range(5):
                self.assertEqual(sum(result[step][0] for result in results), sum(result[step][1] for result in results))
            if count == "free":
                self.assertGreater(
                    sum(result[step][1] for step in range(5) for result in [results[1]]), 0
                )  # the empty rank was given some
                self.assertGreater(sum(result[2] for result in results[0]), 0)

    def test_what_does_not_fit_is_an_error(self):
        for texts in self.ranks(wrong_rows, 2):
            self.assertEqual(3, len(texts))
            self.assertRegex(texts[0], "2 numbers of rows for 1 samples")
            self.assertRegex(texts[2], r"shape \(4, 2\), its first axis must have 3 rows")


if __name__ == "__main__":
    unittest.main()
