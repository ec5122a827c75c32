# SPDX-License-Identifier: Apache-2.0
"""From the loader into the group: `accumulate` loader batches make one step.

What goes wrong with the data of a step is told to all ranks with poise_fail() and costs that step only; what this
rank's own next() has to raise for it is kept here until the reader gets there. With each step goes the loader's state
behind its last batch, so that a checkpoint says what was consumed, however far the loader is ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .errors import EndOfData, Interrupted, InvalidInput, OutOfMemory, PoiseError
from .exchange import EncodedBatch, describe
from .group import Group
from .loaders import Source
from .samples import Sample

__all__ = ["FIELD", "Feed", "Position", "Step"]

FIELD = "sample"  # the one field of the group: a sample's bytes


@dataclass(frozen=True)
class Position:
    """Where a rank's reading stands.

    Attributes:
        step: the next one to be read.
        micro_batch: micro-batches of it that were read already.
        epoch: iterations begun before this one.
        batches, samples: of the loader, in this iteration, before `step`.
        loader: the loader's own state as of then, None if it has none.
    """

    step: int = 0
    micro_batch: int = 0
    epoch: int = 0
    batches: int = 0
    samples: int = 0
    loader: Any = None


@dataclass
class Step:
    """What was pulled for a step: samples, or the reason why there are none."""

    samples: list[Sample] = field(default_factory=list)
    batches: int = 0
    error: str | None = None
    cause: BaseException | None = None
    raised: bool = False  # the loader raised `cause`: this rank's next() raises just that
    keep: list[EncodedBatch] = field(default_factory=list)  # whose memory the samples are in


class Feed:
    """Pulls steps from the loader and submits them. Used by one thread at a time.

    Attributes:
        next_step: the next one to submit.
        behind: by step that was submitted, the position behind it.
        causes: by step that failed here, what went wrong, and whether it is to be raised instead of the library's
            error.
        done: nothing is left to submit.
    """

    def __init__(
        self,
        source: Source,
        group: Group,
        iterator: Iterator[Any],
        start: Position,
        accumulate: int,
        drop_last: bool,
        loader_state: bool,
    ) -> None:
        self.source = source
        self._snapshot = source.state if loader_state else lambda: None
        self.group = group
        self.iterator: Iterator[Any] | None = iterator
        self.accumulate = accumulate
        self.drop_last = drop_last
        self.next_step = start.step
        self.done = False
        self.exhausted = False
        self.at_end: Any = None  # the loader's state behind its last batch, once it has ended
        self.behind: dict[int, Position] = {}
        self.causes: dict[int, tuple[BaseException | None, bool]] = {}
        self._last = start
        self._pending: Step | None = None
        self._pulled_all = False
        self._state: Any = None

    # ------------------------------------------------------------------------------------------------------------- pull

    def _read(self) -> list[EncodedBatch]:
        batches: list[EncodedBatch] = []
        while len(batches) < self.accumulate and not self.exhausted:
            try:
                batches.append(self.source.next(self.iterator))  # type: ignore[arg-type]
            except StopIteration:
                self.exhausted = True
        if len(batches) < self.accumulate and self.drop_last:
            batches.clear()
        return batches

    def _pull(self) -> Step | None:
        """The next step, None if the data has ended."""
        try:
            batches = self._read()
        except Exception as cause:
            return Step(error=f"the data loader raised {describe(cause)}", cause=cause, raised=True)
        if not batches:
            return None
        step = Step(batches=len(batches), keep=batches)
        for k, batch in enumerate(batches):
            if batch.error is not None:
                sample, text = batch.error
                step.samples, step.error, step.cause = [], f"sample {sample} of loader batch {k}: {text}", batch.cause
                break
            self._add(step, k, batch)
        return step

    def _add(self, step: Step, k: int, batch: EncodedBatch) -> None:
        view = batch.view() if len(batch) else memoryview(b"")
        for i, ((offset, nbytes), (length, attention, tokens)) in enumerate(zip(batch.spans, batch.measures)):
            tag = batch.tags[i] if batch.tags else self._last.samples + len(step.samples)
            step.samples.append(Sample({FIELD: view[offset : offset + nbytes]}, length, attention, tokens, tag, k))

    # ----------------------------------------------------------------------------------------------------------- submit

    def advance(self, timeout: float | None) -> bool:
        """Pulls and submits one step. False if the data has ended, on this rank or on all. Timeout: the step is kept,
        call again; the loader is not asked twice."""
        if self.done:
            return False
        if self._pending is None and not self._pulled_all:
            self._pending = self._pull()
            self._pulled_all = self._pending is None
            self._state = self._snapshot()
            if self._pulled_all:  # behind the loader's end, where a state says that the next epoch begins
                self.at_end = self._state
        try:
            if self._pending is None:
                self.group.end(self.next_step, timeout)
                self.done = True
                return False
            self._submit(self._pending, timeout)
        except EndOfData:
            self.done = True
            return False
        return True

    def _submit(self, step: Step, timeout: float | None) -> None:
        number, last = self.next_step, self._last
        # Before the call: the step may be delivered before it returns.
        behind = Position(
            number + 1, 0, last.epoch, last.batches + step.batches, last.samples + len(step.samples), self._state
        )
        self.behind[number] = behind
        if step.error is None:
            try:
                self.group.submit(number, step.samples, timeout)
            except PoiseError as error:
                memory = isinstance(error, OutOfMemory) and error.step == number
                if not isinstance(error, InvalidInput) and not memory:
                    raise
                step.error = error.text
        if step.error is not None:
            self.causes[number] = step.cause, step.raised
            self.group.fail(number, step.error, timeout)
        self._last = behind
        self.next_step = number + 1
        self._pending = None

    def n_read(self) -> int:
        """Samples that were read in this iteration."""
        return self._last.samples + (len(self._pending.samples) if self._pending else 0)

    def fail(self, cause: BaseException) -> None:
        """Tells the other ranks why this one stops, without waiting. Called when no thread uses the feed any more."""
        for _ in range(0 if self.done else 3):
            try:
                self.group.fail(self.next_step, f"the trainer's loader raised {describe(cause)}", 0)
            except Interrupted:
                continue  # one that was meant for a thread that has ended
            except PoiseError:
                pass
            return
