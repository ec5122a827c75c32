# SPDX-License-Identifier: Apache-2.0
"""What balance() reads from: a torch DataLoader, or any iterable of lists of samples.

A DataLoader is not iterated itself. A shallow copy of it is, which shares dataset, sampler and generator and differs in
one thing: where collate_fn was stands an Encoder, so that workers deliver samples as bytes (see exchange.py). The
user's loader stays as it was, and its collate_fn runs on the balanced micro-batches.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .errors import InvalidInput
from .exchange import EncodedBatch, Encoder

__all__ = ["Source"]


class _Skipping:
    """A batch sampler that leaves out its first batches, once: a resumed epoch draws their indices and reads
    nothing."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.n = 0

    def __iter__(self) -> Iterator[Any]:
        n, self.n = self.n, 0
        batches = iter(self.sampler)
        for _ in range(n):
            if next(batches, None) is None:
                break
        yield from batches

    def __len__(self) -> int:
        return len(self.sampler)


def _data_loader() -> Any:
    """torch's DataLoader, if the program has imported it."""
    module = sys.modules.get("torch.utils.data")
    return None if module is None else module.DataLoader


def _starts_by_fork(loader: Any) -> bool:
    context = loader.multiprocessing_context or multiprocessing.get_context()
    return context.get_start_method() == "fork"


def _can_travel(value: Any) -> bool:
    """True if a worker process that is not forked can be given it. A lambda cannot."""
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _identity(samples: list[Any]) -> list[Any]:
    return samples


class Source:
    """A loader as the pipeline sees it.

    Attributes:
        collate_fn: what makes a batch of a list of samples.
        threaded: next() may be called by a helper thread: the loader has worker processes, its own code runs there.
        batch_size: samples of a full batch, None if unknown.
        stateful: the loader has state_dict() and load_state_dict().
    """

    def __init__(
        self,
        loader: Any,
        encoder: Encoder,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        background: bool | None = None,
    ) -> None:
        kind = _data_loader()
        self.loader = loader
        self.encoder = encoder
        self.is_torch = kind is not None and isinstance(loader, kind)
        self.batch_size: int | None = None
        self.skipping: _Skipping | None = None
        self.pin_memory = bool(getattr(loader, "pin_memory", False)) and self.is_torch
        if self.is_torch:
            self.collate_fn = collate_fn or loader.collate_fn
            self.threaded = loader.num_workers > 0 if background is None else background
            self.batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
            self.reader = self._copy_of(loader)
        else:
            self.collate_fn = collate_fn or _identity
            self.threaded = bool(background)
            self.reader = loader
        self.stateful = all(callable(getattr(self.reader, name, None)) for name in ("state_dict", "load_state_dict"))

    def _copy_of(self, loader: Any) -> Any:
        if loader.batch_sampler is None:
            raise InvalidInput(
                "the loader has batch_size=None, so it has no batches of samples to balance: give it a batch_size"
            )
        reader = copy.copy(loader)
        reader.__dict__["_iterator"] = None  # persistent workers of the user's loader have its collate_fn
        reader.collate_fn = self._worker_encoder(loader)
        reader.pin_memory = False  # the balanced batch is pinned instead
        if not self._is_iterable_dataset():
            self.skipping = _Skipping(loader.batch_sampler)
            reader.__dict__["batch_sampler"] = self.skipping
        return reader

    def _is_iterable_dataset(self) -> bool:
        return isinstance(self.loader.dataset, sys.modules["torch.utils.data"].IterableDataset)

    def _worker_encoder(self, loader: Any) -> Encoder:
        encoder = self.encoder
        if loader.num_workers == 0 or _starts_by_fork(loader) or _can_travel(encoder):
            return encoder
        return Encoder(None, encoder.phases, cast=encoder.cast)  # measured here then, from the bytes

    # -------------------------------------------------------------------------------------------------------- iteration

    def iterate(self) -> Iterator[Any]:
        """iter() of the loader. In the thread of the caller: workers start here, and samplers may draw a seed."""
        return iter(self.reader)

    def next(self, iterator: Iterator[Any]) -> EncodedBatch:
        """The next batch, encoded and measured. StopIteration at the end; else whatever the loader raises."""
        batch = next(iterator)
        if not isinstance(batch, EncodedBatch):
            batch = self.encoder(batch)
        if batch.measures is None:
            self.encoder.measure(batch)
        return batch

    def skip(self, n: int, iterator: Iterator[Any] | None = None) -> bool:
        """Leaves out `n` batches of the next iteration; with an iterator, reads them. True if nothing is left to do."""
        if iterator is not None:
            for _ in range(n):
                next(iterator, None)
            return True
        if self.skipping is not None:
            self.skipping.n = n
        return self.skipping is not None

    def __len__(self) -> int:
        return len(self.loader)

    # ------------------------------------------------------------------------------------------------------------ state

    def state(self) -> Any:
        """A copy of the loader's own state, None if it has none."""
        return copy.deepcopy(self.reader.state_dict()) if self.stateful else None

    def load_state(self, state: Any) -> None:
        self.reader.load_state_dict(copy.deepcopy(state))

    def set_epoch(self, epoch: int) -> int:
        """Tells whoever shuffles by epoch. Returns how many were told."""
        told: list[Any] = []
        for owner in self._owners():
            if callable(getattr(owner, "set_epoch", None)) and not any(owner is other for other in told):
                owner.set_epoch(epoch)
                told.append(owner)
        return len(told)

    def _owners(self) -> Sequence[Any]:
        loader = self.loader
        sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
        reader = [self.reader] if self.reader is not loader else []  # a subclass may keep the epoch in itself
        return [
            loader,
            *reader,
            sampler,
            batch_sampler,
            getattr(batch_sampler, "sampler", None),
            getattr(loader, "dataset", None),
        ]
