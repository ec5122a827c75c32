# SPDX-License-Identifier: Apache-2.0
"""A step's rank mapping for the trainer's own collectives.

Between an image encoder and a language model, what should move are features that are on the accelerator already. A
plan-only group moves no payload and says who should have what; this turns that into split sizes and permutations for
one all-to-all, there and back:

    group = poise.Group(group="images", plan_only=True, cost="qwen2.5-vl-vit", count="free")
    group.submit(step, [poise.Sample(length=patches, nbytes=bytes_of(image)) for each of my images])
    with group.next() as batch:
        exchange = poise.RankMapping(batch.mapping, group.n_ranks).rows(patches_of_my_images)
    balanced = exchange.forward(pixels)            # [my rows, ...] -> [rows that I shall encode, ...]
    features = exchange.reverse(encoder(balanced)) # back where they came from, in their old order

Both are differentiable: the gradient of one is the other, a permutation, so every bit comes back. They are collectives,
as is their backward: every rank must call them, an empty one too, and use what they return in its loss (times 0 if need
be).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .batch import Mapping
from .errors import InvalidInput

if TYPE_CHECKING:
    import torch

__all__ = ["RankMapping", "RowExchange"]


class RankMapping:
    """Who sends how many samples to whom, and in which order.

    Samples travel ordered by destination, then by their index; what arrives is ordered by origin, then by its index
    there.

    Attributes:
        n_ranks: of the group.
        n_out, n_in: this rank's own samples; those that it shall have.
        send_order: [n_out] own indices in the order of sending.
        send_counts, receive_counts: [n_ranks] samples.
        receive_order: [n_in] where in the received sequence each sample of the delivered order is.
        micro_batches: [n_in] of each delivered sample.
    """

    def __init__(self, mapping: Mapping, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self.n_out, self.n_in = len(mapping.outgoing), len(mapping.incoming)
        self.send_order = sorted(range(self.n_out), key=lambda i: (mapping.outgoing[i].rank, i))
        self.send_counts = _counted((sample.rank for sample in mapping.outgoing), n_ranks)
        self.receive_counts = _counted((sample.rank for sample in mapping.incoming), n_ranks)
        arriving = sorted(range(self.n_in), key=lambda j: (mapping.incoming[j].rank, mapping.incoming[j].index))
        self.receive_order = _inverse(arriving)
        self.micro_batches = [sample.micro_batch for sample in mapping.incoming]

    def rows(self, rows: Sequence[int] | torch.Tensor, process_group: Any = None) -> RowExchange:
        """The exchange of tensors of which own sample i has rows[i] rows. A collective: tells receivers how many rows
        come."""
        import torch

        own = torch.as_tensor(rows, dtype=torch.int64).reshape(-1).tolist()
        if len(own) != self.n_out:
            raise InvalidInput(f"{len(own)} numbers of rows for {self.n_out} samples that this rank submitted")
        if any(n < 0 for n in own):
            raise InvalidInput(f"rows of sample {next(i for i, n in enumerate(own) if n < 0)} are negative")
        device = _device_of(process_group)
        arrived = torch.empty(self.n_in, dtype=torch.int64, device=device)
        sent = torch.tensor([own[i] for i in self.send_order], dtype=torch.int64, device=device)
        _all_to_all(arrived, sent, self.receive_counts, self.send_counts, process_group)
        return RowExchange(self, own, arrived.tolist(), process_group)


class RowExchange:
    """Tensors with rows: there (`forward`) and back (`reverse`).

    Attributes:
        rows_out: [n_out] rows of each own sample.
        rows_in: [n_in] rows of each delivered sample, in delivered order.
        input_splits, output_splits: [n_ranks] rows to send, to receive; of reverse() the other way round.
    """

    def __init__(self, mapping: RankMapping, own: list[int], arrived: list[int], process_group: Any) -> None:
        self.mapping = mapping
        self.process_group = process_group
        self.rows_out = own
        self.rows_in = [arrived[j] for j in mapping.receive_order]
        sent = [own[i] for i in mapping.send_order]
        self.input_splits = _summed(sent, mapping.send_counts)
        self.output_splits = _summed(arrived, mapping.receive_counts)
        self._send = _spread(own, mapping.send_order)  # [rows sent] of the own tensor
        self._arrange = _spread(arrived, mapping.receive_order)  # [rows delivered] of the received tensor
        self._indices: dict[Any, tuple[Any, ...]] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [sum(rows_out), ...]: own samples one after the other -> [sum(rows_in), ...] in delivered order."""
        return _function().apply(self._checked(x, self.rows_out, "forward"), self, False)

    def reverse(self, y: torch.Tensor) -> torch.Tensor:
        """y [sum(rows_in), ...] in delivered order -> [sum(rows_out), ...]: own samples one after the other."""
        return _function().apply(self._checked(y, self.rows_in, "reverse"), self, True)

    def _checked(self, x: torch.Tensor, rows: list[int], what: str) -> torch.Tensor:
        if x.dim() == 0 or x.shape[0] != sum(rows):
            raise InvalidInput(
                f"{what}: the tensor has shape {tuple(x.shape)}, its first axis must have {sum(rows)} rows"
            )
        return x

    def _on(self, device: Any) -> tuple[Any, ...]:
        """Permutations and their inverses as index tensors, made once a device."""
        import torch

        if device not in self._indices:
            lists = (self._send, _inverse(self._send), self._arrange, _inverse(self._arrange))
            self._indices[device] = tuple(torch.tensor(index, dtype=torch.int64, device=device) for index in lists)
        return self._indices[device]

    def move(self, x: torch.Tensor, back: bool) -> torch.Tensor:
        """The exchange without autograd."""
        send, unsend, arrange, unarrange = self._on(x.device)
        first, then = (unarrange, unsend) if back else (send, arrange)
        splits = (self.output_splits, self.input_splits) if back else (self.input_splits, self.output_splits)
        arrived = x.new_empty((sum(splits[1]), *x.shape[1:]))
        _all_to_all(arrived, x.index_select(0, first), splits[1], splits[0], self.process_group)
        return arrived.index_select(0, then)


def _function() -> Any:
    """The torch.autograd.Function; made when first used, since torch is imported only then."""
    global _Move
    if _Move is None:
        import torch

        class Move(torch.autograd.Function):
            """Samples to other ranks; the gradient comes back the same way."""

            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, exchange: RowExchange, back: bool) -> torch.Tensor:
                ctx.exchange, ctx.back = exchange, back
                return exchange.move(x, back)

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, None, None]:
                return ctx.exchange.move(gradient.contiguous(), not ctx.back), None, None

        _Move = Move
    return _Move


_Move: Any = None


def _all_to_all(output: Any, send: Any, output_splits: list[int], input_splits: list[int], process_group: Any) -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.all_to_all_single(output, send, output_splits, input_splits, group=process_group)
    elif len(input_splits) == 1:
        output.copy_(send)
    else:
        raise InvalidInput("torch.distributed is not initialised: call init_process_group() before exchanging tensors")


def _device_of(process_group: Any) -> Any:
    """Where the group's backend wants small tensors: NCCL has none on the host."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized() and torch.accelerator.is_available() and dist.get_backend(process_group) != "gloo":
        return torch.accelerator.current_accelerator()
    return torch.device("cpu")


def _counted(ranks: Any, n_ranks: int) -> list[int]:
    counts = [0] * n_ranks
    for rank in ranks:
        counts[rank] += 1
    return counts


def _inverse(order: Sequence[int]) -> list[int]:
    inverse = [0] * len(order)
    for place, i in enumerate(order):
        inverse[i] = place
    return inverse


def _summed(rows: list[int], counts: list[int]) -> list[int]:
    """Rows by rank, of samples that lie rank after rank."""
    ends = list(accumulate(counts))
    return [sum(rows[end - count : end]) for end, count in zip(ends, counts)]


def _spread(rows: list[int], order: Sequence[int]) -> list[int]:
    """A permutation of samples as one of their rows."""
    begins = [0, *accumulate(rows)]
    return [row for i in order for row in range(begins[i], begins[i + 1])]
