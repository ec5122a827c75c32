# SPDX-License-Identifier: Apache-2.0
"""One pass over the data: loader -> group -> collate -> trainer.

With worker processes the loader is read by one helper thread and balanced micro-batches are taken, unpickled and
collated by another, both ahead of the trainer, whose next() finds a batch ready. Without worker processes the dataset
is the user's code in the user's process and may hold anything (random generators, files, sqlite handles): then next()
does all of it in the caller's thread, and only the library's own thread works ahead. Either way the loader is asked in
the same order, so both give the same batches.

A micro-batch is unpickled as views of the slot that it came in, and collate_fn as a rule copies them: then the slot is
free at once. What is not copied keeps its slot. Slots are few, so where an older step's is still held, the next one is
copied: a trainer may keep as many batches as fit its memory.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .batch import Batch, Row, Totals
from .errors import Aborted, EndOfData, Interrupted, InvalidInput, PoiseError, StepError, Timeout, UseAfterFork
from .exchange import decode
from .feed import FIELD, Feed, Position
from .group import Group

__all__ = ["BatchInfo", "Pipeline"]

_JOIN_SECONDS = 5.0  # a loader that takes longer for a batch is left to finish it behind our back
# How often the reader looks whether a batch was taken, when enough are ready. next() could wake it, but the kernel then
# lets it run first, in the place of the trainer: half of what next() took (70 instead of 150 us), and milliseconds on a
# busy machine.
_LOOK_SECONDS = 0.005
_AHEAD_INLINE = 1  # steps: enough for the exchange to overlap with the trainer


class BatchInfo:
    """What goes with a batch.

    Attributes:
        step, micro_batch, n_micro_batches: which one of how many of its step.
        n_ranks: of the group.
        rows: [samples] poise.Row: tag, origin, loss tokens and weights of each sample, in the order in which collate_fn
            got them.
        totals: poise.Totals of the step over all ranks.
        plan_id: 16 bytes, the same on every rank.
    """

    __slots__ = ("step", "micro_batch", "n_micro_batches", "n_ranks", "rows", "totals", "plan_id")

    def __init__(self, batch: Batch, n_ranks: int) -> None:
        self.step = batch.step
        self.micro_batch = batch.micro_batch
        self.n_micro_batches = batch.n_micro_batches
        self.n_ranks = n_ranks
        self.rows: list[Row] = batch.rows
        self.totals: Totals = batch.totals
        self.plan_id = batch.plan_id

    def weights(self, kind: str = "step", dtype: Any = None, device: Any = None) -> Any:
        """[samples] the weight of each sample's summed token losses, as a float64 tensor.

        kind: "step": 1 / loss tokens of the step: their mean over the step. "arrival": the mean of the means of the
        micro-batches that the unbalanced run would have had. Over all ranks and micro-batches of a step the sum of
        weight x loss_tokens is 1 for both: see scale_for_mean() where a framework averages over ranks.
        """
        import torch

        if kind not in ("step", "arrival"):
            raise InvalidInput(f"weights of kind {kind!r}: there are 'step' and 'arrival'")
        name = f"weight_{kind}"
        return torch.tensor([getattr(row, name) for row in self.rows], dtype=dtype or torch.float64, device=device)

    def __repr__(self) -> str:
        return (
            f"<poise.BatchInfo step {self.step}, micro-batch {self.micro_batch} of {self.n_micro_batches}, "
            f"{len(self.rows)} samples>"
        )


@dataclass
class Item:
    """What the reader hands to the trainer: a batch, or an error, and where reading stands behind it."""

    position: Position | None = None
    batch: Any = None
    info: BatchInfo | None = None
    error: BaseException | None = None
    last: bool = False  # nothing comes behind it


class Pipeline:
    """A running epoch. next() belongs to one thread, the trainer's."""

    def __init__(
        self,
        feed: Feed,
        group: Group,
        collate: Callable[[list[Any]], Any],
        place: Callable[[Any], Any],
        *,
        empty: Any,
        start: Position,
        copy: bool,
        threaded: bool,
        ahead: int,
    ) -> None:
        self.feed = feed
        self.group = group
        self.pid = os.getpid()
        self._collate = collate
        self._place = place
        self._empty = empty
        self._start = start
        self._copy = copy
        self._ahead = ahead
        self._before = start  # the position behind the last whole step
        self._reading = start.step
        self._part = 0  # micro-batches of step `_reading` that were taken
        self._held: deque[tuple[int, Any]] = deque()  # (step, weak reference to the owner of its slot)
        self._items: deque[Item] = deque()
        self._wake = threading.Condition()
        self._waiting = False
        self._stop = False
        self._last: Item | None = None
        self._failed: BaseException | None = None
        self._hurry = False
        self._closed = False
        self._threads: list[threading.Thread] = []
        if threaded:
            for name, work in (("poise-feed", self._feed_loop), ("poise-read", self._read_loop)):
                thread = threading.Thread(target=work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    # ---------------------------------------------------------------------------------------------------------- reading

    def _must_copy(self, batch: Batch) -> bool:
        """True if views of this batch would let more than one step's slot be held."""
        self._held = deque((step, owner) for step, owner in self._held if owner() is not None)
        if self._copy or any(step != batch.step for step, _ in self._held):
            return True
        self._held.append((batch.step, weakref.ref(batch._hold)))
        return False

    def _samples(self, batch: Batch) -> list[Any]:
        if batch.n_samples and self._must_copy(batch):
            batch.detach()
        return [decode(batch.value(i, FIELD).memory) for i in range(batch.n_samples)]

    def _batch_of(self, batch: Batch) -> Any:
        if batch.n_samples == 0:
            return self._empty(batch)
        samples = self._samples(batch)
        batch.release()
        return self._place(self._collate(samples))

    def _behind(self, batch: Batch) -> Position:
        if batch.micro_batch + 1 == batch.n_micro_batches:
            self._reading, self._part = batch.step + 1, 0
            return self._pop(batch.step)
        self._reading, self._part = batch.step, batch.micro_batch + 1
        before = self._before
        return Position(batch.step, self._part, before.epoch, before.batches, before.samples, before.loader)

    def _take(self, timeout: float | None) -> Item | None:
        """The next micro-batch as an item. None: it was read before the checkpoint that this run resumed from."""
        batch = self.group.next(timeout=timeout)
        position = self._behind(batch)
        if position.micro_batch == 0:
            self._before = position
        info = BatchInfo(batch, self.group.n_ranks)
        if batch.step == self._start.step and batch.micro_batch < self._start.micro_batch:
            batch.release()
            return None
        try:
            return Item(position, self._batch_of(batch), info)
        except Exception as error:  # of collate_fn
            return Item(position, None, info, error)

    def _read(self, timeout: float | None = None) -> Item | None:
        """One item, whatever comes; raises Timeout, Interrupted and what is no Exception."""
        try:
            return self._take(timeout)
        except EndOfData:
            return Item(self._at_end(), last=True)
        except StepError as error:
            step = self._reading
            self._reading, self._part = step + 1, 0
            position = self._before = self._pop(step)
            cause, raised = self.feed.causes.pop(step, (None, False))
            if cause is not None and raised and error.rank in (None, self.group.rank):
                return Item(position, error=cause)
            error.__cause__ = cause
            return Item(position, error=error)
        except (Timeout, Interrupted):
            raise
        except UserWarning as error:  # where warnings are errors: nothing was taken
            return Item(None, error=error)
        except PoiseError as error:
            return Item(None, error=error, last=True)

    def _pop(self, step: int) -> Position:
        """The position behind a step. A rank whose data has ended while others go on does not submit it."""
        position = self.feed.behind.pop(step, None)
        before = self._before
        return position or Position(step + 1, 0, before.epoch, before.batches, before.samples, self.feed.at_end)

    def _at_end(self) -> Position:
        """Behind the last step of this epoch: the next one begins with the loader's next iteration."""
        return Position(self._reading, 0, self._start.epoch + 1, 0, 0, self.feed.at_end)

    # ---------------------------------------------------------------------------------------------------------- threads

    def _put(self, item: Item) -> None:
        with self._wake:
            self._items.append(item)
            if self._waiting:
                self._wake.notify_all()

    def _feed_loop(self) -> None:
        try:
            while not self._stop:
                try:
                    if not self.feed.advance(None):
                        break
                except Timeout:
                    continue  # the trainer's next() has its own deadline, and says what is waited for
                except UserWarning as error:
                    self._put(Item(None, error=error))
        except (Interrupted, Aborted):
            pass  # next() says so
        except BaseException as error:
            self._put(Item(None, error=error, last=True))
        if self._stop or self.feed.exhausted:
            self.feed.iterator = None  # ends the loader's workers, unless they are persistent

    def _has_room(self) -> bool:
        with self._wake:
            while len(self._items) >= self._ahead and not self._stop:
                self._wake.wait(_LOOK_SECONDS)
            return not self._stop

    def _read_loop(self) -> None:
        item: Item | None = None
        try:
            while (item is None or not item.last) and self._has_room():
                asked = time.monotonic()
                try:
                    item = self._read()
                except Timeout as error:
                    with self._wake:
                        waiting = self._waiting
                    if waiting:  # else nobody has asked: the trainer is at something else
                        error.text += f" ({time.monotonic() - asked:.0f} s)"
                        self._put(Item(None, error=error))
                    continue
                if item is not None:
                    self._put(item)
                    last, item = item.last, None  # or the batch would live until the next one is there
                    if last:
                        break
        except Interrupted:
            pass
        except BaseException as error:
            self._put(Item(None, error=error, last=True))

    # ------------------------------------------------------------------------------------------------------------- next

    def _wait(self) -> Item:
        """The next item of the reading thread. A signal's handler may raise out of this wait."""
        if self._items:  # the usual case: no lock, and nobody is woken
            return self._items.popleft()
        with self._wake:
            self._waiting = True
            self._wake.notify_all()  # the reader may not have looked yet
            try:
                while not self._items:
                    if self._stop:
                        return Item(None, error=Aborted("the iteration was closed by another thread"), last=True)
                    self._wake.wait()
                return self._items.popleft()
            finally:
                self._waiting = False

    def _inline(self) -> Item:
        while True:
            while self._part == 0 and self.feed.next_step <= self._reading + _AHEAD_INLINE:
                must = self.feed.next_step <= self._reading
                try:
                    if not self.feed.advance(None if must else 0):
                        break
                except Timeout:
                    if must:
                        raise
                    break
            item = self._read()
            if item is not None:
                return item

    def next(self) -> Item:
        """The next item; raises nothing but what comes from outside (a signal's handler)."""
        if os.getpid() != self.pid:
            raise UseAfterFork(
                "this process is a child of the one that iterates: iterate in the parent, or call balance() here", -1
            )
        if self._last is not None:
            return self._last
        if self._closed:
            return Item(None, error=Aborted("the iteration was closed"), last=True)
        try:
            item = self._wait() if self._threads else self._inline()
        except PoiseError:
            raise
        except KeyboardInterrupt:
            self._hurry = True  # whoever gives up does not serve others for half a minute
            raise
        except Exception as error:  # such as torch's handler of SIGCHLD, when a worker was killed
            self._failed = error
            raise
        if item.last:
            self._last = Item(None, error=item.error, last=True)
        return item

    # -------------------------------------------------------------------------------------------------------------- end

    def _end_threads(self) -> bool:
        """Ends the helper threads. False if the loader still has one, which will end by itself."""
        with self._wake:
            self._stop = True
            self._wake.notify_all()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            while thread.is_alive() and thread is not threading.current_thread() and time.monotonic() < deadline:
                if not self.group.closed:
                    self.group.interrupt()
                thread.join(0.01)
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Waits until the loader is free for another iteration."""
        for thread in self._threads:
            while thread.is_alive():
                thread.join(0.1)  # cut into pieces: answers Ctrl-C

    def dropped(self) -> int:
        """Samples that this rank read and nobody got, as another rank's data ended first."""
        return self.feed.n_read() - self._before.samples

    def close(self, wait: bool = True) -> None:
        """Ends the epoch; steps in flight are dropped. wait: serves peers that still read what this rank sent."""
        if self._closed or os.getpid() != self.pid:
            return
        self._closed = True
        ended = self._end_threads()
        if ended and self._failed is not None:
            self.feed.fail(self._failed)
        self._items.clear()
        if ended:
            self.feed.iterator = None
        self.group.close(wait=wait and not self._hurry and self._failed is None)
