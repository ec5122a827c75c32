# SPDX-License-Identifier: Apache-2.0
"""The balanced micro-batches of one step, as one iterator reads them.

Most steps come from the library as the trainer wants them: each dict is a view of one delivered micro-batch. A step
that was planned for other micro-batches (it was read ahead when the trainer changed their size), or by an old algorithm
that makes a number of its own, is taken whole and cut again, which copies.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from .batch import Batch, Row
from .collated import Frame
from .errors import StepError
from .pipeline import BatchInfo
from .reassemble import from_batch, from_samples, samples_of


class Cut(NamedTuple):
    """How a step is cut into micro-batches: samples in each, how many there are (0: as many as needed), and the
    capacity that the old algorithms ask for."""

    size: int
    number: int
    capacity: int


class Reading(NamedTuple):
    """What iterators of one balancer share.

    Attributes:
        frame_of: how the dicts of a step are made, once it is decided.
        next: the next micro-batch of an iterator, or the error of the step.
        keeps_count: the algorithm leaves each rank as many samples as it had.
        unit: samples that move as one: 2 in a batch of pairs.
        with_weights: weights and totals go into each dict.
    """

    frame_of: Callable[[int], Frame]
    next: Callable[[int], Batch]
    n_ranks: int
    keeps_count: bool
    unit: int
    with_weights: bool


class MicroBatches:
    """The balanced micro-batches of one step: an iterator of dicts with the loader's keys. Its length is their number.

    Attributes:
        step: the step.
        info: poise.BatchInfo of the micro-batch that was given last: weights, totals, where each sample comes from.
    """

    def __init__(self, reading: Reading, step: int, index: int, cut: Cut, must_cut: bool) -> None:
        self.step = step
        self.info: BatchInfo | None = None
        self._reading = reading
        self._index = index
        self._cut = cut
        self._must_cut = must_cut
        self._n: int | None = None  # not known before the first came
        self._given = 0
        self._is_left = True  # something of the step is still with the library
        self._first: Batch | None = None
        self._pieces: deque[tuple[list[dict[str, Any]], BatchInfo]] | None = None
        self._like: dict[str, Any] = {}
        self._frame: Frame | None = None

    def start(self) -> None:
        """Waits for the first micro-batch. Raises the step's outcome where it is no plan."""
        if self._n is not None:
            return
        first = self._first = self._take()
        self._frame = self._reading.frame_of(self.step)
        n, cut = first.n_micro_batches, self._cut
        if cut.number and n > cut.number and self._reading.keeps_count and not self._must_cut:  # on all ranks
            self.close()
            raise StepError(
                f"step {self.step}: the ranks' samples make {n} micro-batches of {cut.size}, num_microbatches is "
                f"{cut.number}",
                -errno.EBADMSG,
                step=self.step,
            )
        self._n = n
        if self._must_cut or cut.number and n != cut.number:
            self._cut_anew()

    def _take(self) -> Batch:
        batch = self._reading.next(self._index)
        if batch.step != self.step:
            raise RuntimeError(
                f"step {batch.step} came where step {self.step} was read: who else reads iterator {self._index}?"
            )
        self._is_left = batch.micro_batch + 1 < batch.n_micro_batches
        return batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __len__(self) -> int:
        self.start()
        return self._n or 0

    def __next__(self) -> dict[str, Any]:
        self.start()
        if self._given == self._n:
            raise StopIteration
        reading = self._reading
        if self._pieces is not None:
            samples, self.info = self._pieces.popleft()
            made = from_samples(self._frame, samples, self._like)
        else:
            batch, self._first = self._first, None
            if batch is None:
                batch = self._take()
            self.info = BatchInfo(batch, reading.n_ranks)
            made = from_batch(self._frame, batch)
        self._given += 1
        if reading.with_weights:
            made["poise_weight_step"] = self.info.weights("step")
            made["poise_weight_arrival"] = self.info.weights("arrival")
            made["poise_loss_tokens"] = torch.tensor([row.loss_tokens for row in self.info.rows], dtype=torch.int64)
            made["poise_totals"] = self.info.totals
        return made

    def close(self) -> None:
        """Gives back what was not read of the step; nothing comes any more."""
        self._first = None
        while self._is_left:
            self._take()
        self._pieces = None
        self._n = self._given

    # --------------------------------------------------------------------------------------------------------- cut anew

    def _cut_anew(self) -> None:
        """Takes all of this rank's samples of the step, in their order, and cuts them as the trainer asks."""
        reading, batch = self._reading, self._first
        self._first = None
        units: list[list[tuple[dict[str, Any], Row]]] = []
        assert batch is not None
        while True:
            self._like = {name: batch.field(name).torch() for name in batch.names}
            rows = list(zip(samples_of(self._frame, batch), batch.rows))
            n_units = len(rows) // reading.unit
            units += [rows[i::n_units] for i in range(n_units)]  # all first members, then all second
            if not self._is_left:
                break
            batch = self._take()
        number, size = _pieces_of(len(units), self._cut)
        self._pieces = deque()
        for i in range(number):
            piece = units[i * size : (i + 1) * size]
            rows = [unit[member] for member in range(reading.unit) for unit in piece]
            info = BatchInfo(batch, reading.n_ranks)
            info.micro_batch, info.n_micro_batches, info.rows = i, number, [row for _, row in rows]
            self._pieces.append(([values for values, _ in rows], info))
        self._n = number


def _pieces_of(n_units: int, cut: Cut) -> tuple[int, int]:
    """How many micro-batches, and units in each: as asked, larger ones where they would not hold all (an old algorithm
    keeps no count), the last ones short or empty where there is less."""
    number = cut.number or max(1, -(-n_units // (cut.size or n_units or 1)))
    return number, max(cut.size, -(-n_units // number))
