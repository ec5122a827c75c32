# SPDX-License-Identifier: Apache-2.0
"""The plain loop:

    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset), num_workers=4, collate_fn=collate)
    for batch in poise.balance(loader, lengths="qwen2-vl", cost="qwen2.5-vl-7b"):
        train(batch)

The loader's samples are exchanged as the dataset returned them, before collate, and collate_fn makes a batch of the
samples that this rank shall train on. So datasets should return what is small: encoded images, decoded in collate_fn by
the new owner.

Every iteration over it is a group of its own: prefetch never crosses an epoch's end, `break` and the next `for` begin
anew.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .batch import Batch
from .device import Placer, casts
from .errors import InvalidInput, PoiseWarning
from .exchange import Encoder
from .feed import FIELD, Feed, Position
from .group import Group
from .lengths import LossTokens, rule_of
from .loaders import Source
from .options import Phase, phases_of
from .pipeline import BatchInfo, Pipeline
from .resume import load_position, save_position
from .samples import Field

__all__ = ["Balanced", "BatchInfo", "balance", "scale_for_mean"]

_names: dict[str, int] = {}  # balance() objects of this process by the name of their group
_running: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def scale_for_mean(weights: Any, n_ranks: int) -> Any:
    """Weights for a framework that averages gradients over ranks (DistributedDataParallel, FSDP): times n_ranks.

    Summed over all ranks, weight x loss_tokens is 1, so loss = sum(weights * token_loss_sums) is right where gradients
    are added.
    """
    return weights * n_ranks


def balance(
    loader: Iterable[Any],
    lengths: str | Callable[[Any], Any],
    cost: str | Sequence[Phase] | None = None,
    *,
    accumulate: int = 1,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    loss_tokens: str | Callable[[Any], int] | None = None,
    tag: Callable[[Any], int] | None = None,
    with_info: bool = False,
    drop_last: bool | None = None,
    end: str = "stop",
    empty: Callable[[], Any] | None = None,
    pin_memory: bool | None = None,
    device: Any = None,
    cast: Any = None,
    copy: bool = False,
    loader_state: bool = True,
    background: bool | None = None,
    ahead: int = 2,
    group: str | None = None,
    **options: Any,
) -> Balanced:
    """Balances what a loader gives over the data-parallel ranks. All ranks call it, in the same order.

    Args:
        loader: a torch DataLoader, or an iterable of lists of samples. Samples may be anything that can be pickled:
            nested containers, CPU tensors, numpy arrays, PIL images, bytes, strings.
        lengths: how long a sample is: a function sample -> number (rounded up), tuple by phase, dict by phase or
            poise.Measure; or a rule of poise.lengths by its name: "qwen2-vl", "qwen2.5-vl", "internvl", "tokens".
        cost: what lengths cost: a preset ("qwen2.5-vl-7b"; see poise.presets()) or a list of poise.Phase; None: a
            sample costs its length (with a rule: the decoder's).
        accumulate: loader batches that make one step (one optimizer step). The iterator yields as many micro-batches.
            Where the batch size cannot be seen (iterables of lists), give micro_batch_size=, or a short last step is
            cut in as many, too.
        collate_fn: makes a batch of a list of samples; None: the loader's own, for other iterables the list itself.
        loss_tokens: what a sample adds to the divisor of the loss: a function of the sample, or the name of its labels
            (those that are not -100, the first left out); None: 1 each, or what poise.Measure says.
        tag: function of a sample -> 64 bits that travel with it (info.rows[i].tag); None: its number in the rank's
            epoch.
        with_info: yield (batch, info) pairs; else see Balanced.info.
        drop_last: leave out a last step of fewer than `accumulate` loader batches; None: as the loader's drop_last.
        end: "stop": the epoch ends on all ranks with the first that has no more data; "continue": when all have none.
        empty: function () -> what stands for a micro-batch without samples (see `end`, uneven last steps); None: an
            error.
        pin_memory: copy batches into page-locked memory; None: as the loader's.
        device: copy batches to it, on a stream of its own, ahead of the trainer.
        cast: a dtype for float32 tensors to travel (and arrive) in, such as torch.bfloat16; or a dict from dtype to
            dtype.
        copy: never hand out views of received memory; by default collate_fn gets tensors that may be such, and where a
            batch keeps them, the memory stays (see poise.pipeline).
        loader_state: state_dict() holds the loader's state, too; False: poise's alone, good on any number of ranks.
        background: a helper thread may call next() of the loader; None: if it has worker processes.
        ahead: micro-batches that are collated ahead of the trainer (with a helper thread).
        group: the group's name; None: "dp", "dp.2" ... in the order of calls.
        options: of poise.Group: rank, n_ranks, process_group, mesh, job, algorithm, count, mode, memory_budget ... None
            is needed under torchrun.
    """
    return Balanced(
        loader,
        lengths,
        cost,
        accumulate=accumulate,
        collate_fn=collate_fn,
        loss_tokens=loss_tokens,
        tag=tag,
        with_info=with_info,
        drop_last=drop_last,
        end=end,
        empty=empty,
        pin_memory=pin_memory,
        device=device,
        cast=cast,
        copy=copy,
        loader_state=loader_state,
        background=background,
        ahead=ahead,
        group=group,
        **options,
    )


def _name_of(group: str | None) -> str:
    """A group's name that no other balance() of this process has. Ranks that call it in the same order agree."""
    if group is not None:
        return group
    n = _names["dp"] = _names.get("dp", 0) + 1
    return "dp" if n == 1 else f"dp.{n}"


class Balanced:
    """What balance() returns: an iterable of batches, to be iterated once an epoch. Its length is the loader's.

    Attributes that it has not itself are the loader's (dataset, sampler, batch_size ...).

    Attributes:
        loader: what was given.
        info: poise.BatchInfo of the batch that was yielded last.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        lengths: Any,
        cost: Any,
        *,
        accumulate: int,
        collate_fn: Any,
        loss_tokens: Any,
        tag: Any,
        with_info: bool,
        drop_last: bool | None,
        end: str,
        empty: Any,
        pin_memory: bool | None,
        device: Any,
        cast: Any,
        copy: bool,
        loader_state: bool,
        background: bool | None,
        ahead: int,
        group: str | None,
        **options: Any,
    ) -> None:
        if accumulate < 1 or ahead < 1:
            raise InvalidInput(f"accumulate is {accumulate}, ahead is {ahead}: both are at least 1")
        self.loader = loader
        self.info: BatchInfo | None = None
        self._pipeline: Pipeline | None = None
        phases = [phase.name for phase in phases_of("length" if cost is None else cost)]
        tokens = LossTokens(loss_tokens) if isinstance(loss_tokens, str) else loss_tokens
        self._source = Source(
            loader, Encoder(rule_of(lengths), phases, tokens, tag, casts(cast)), collate_fn, background
        )
        self._placer = Placer(device, self._source.pin_memory if pin_memory is None else pin_memory)
        self._accumulate = accumulate
        self._with_info = with_info
        self._drop_last = bool(getattr(loader, "drop_last", False) if drop_last is None else drop_last)
        self._empty = empty
        self._copy = copy
        self._ahead = ahead
        self._loader_state = loader_state
        self._base = _name_of(group)
        self._options = self._group_options(cost, end, options)
        self._position = Position(step=self._options.pop("first_step", None) or 0)
        self._n_ranks, self._rank = 0, 0
        self._iterations = 0
        self._resumed = False

    def _group_options(self, cost: Any, end: str, options: dict[str, Any]) -> dict[str, Any]:
        """What follows from `accumulate`, where the user has not said otherwise: micro-batches of the loader's size, as
        many as the fullest rank needs; where sizes are unknown or free, `accumulate` of them cut by cost."""
        merged = {"cost": cost, "end": end, **options}
        if "micro_batch_size" in options or "n_micro_batches" in options:
            return merged
        size = self._source.batch_size
        if self._accumulate == 1:
            merged["n_micro_batches"] = 1
        elif size and options.get("count", "equal") in ("equal", 0):
            merged["micro_batch_size"] = size
        else:
            merged["n_micro_batches"] = self._accumulate
            merged.setdefault("cut", "by_cost")
        return merged

    # -------------------------------------------------------------------------------------------------------- iteration

    def __iter__(self) -> BalancedIterator:
        """Begins an epoch: ends the one before, iterates the loader (in this thread), joins the group; blocks until all
        ranks have joined."""
        self.close()
        start = self._position
        ready = self._source.skip(start.batches) if self._resumed and start.batches and start.loader is None else True
        iterator = self._source.iterate()
        if not ready:
            self._source.skip(start.batches, iterator)
        if not self._resumed:  # what `break` left of a step is not taken up again
            start = Position(start.step + (start.micro_batch > 0), 0, start.epoch)
        self._resumed = False
        group = self._join(start)
        try:
            feed = Feed(self._source, group, iterator, start, self._accumulate, self._drop_last, self._loader_state)
            pipeline = Pipeline(
                feed,
                group,
                self._source.collate_fn,
                self._placer.place,
                empty=self._no_samples,
                start=start,
                copy=self._copy,
                threaded=self._source.threaded,
                ahead=self._ahead,
            )
        except BaseException:
            group.close(wait=False)
            raise
        _running.add(pipeline)
        self._position = start
        self._pipeline = pipeline
        return BalancedIterator(self, pipeline)

    def _join(self, start: Position) -> Group:
        name = self._base if self._iterations == 0 else f"{self._base}+{self._iterations}"
        self._iterations += 1
        group = Group(group=name, first_step=start.step, **self._options)
        self._n_ranks, self._rank = group.n_ranks, group.rank
        try:
            self._refuse_open_network(group)
            group.declare([Field(FIELD, "bytes", (-1,), assembly="opaque")])
        except BaseException:
            group.close(wait=False)
            raise
        return group

    def _refuse_open_network(self, group: Group) -> None:
        """Unpickling runs what the bytes say, so bytes that anybody in the network may have sent are not unpickled."""
        plain = (self._options.get("payload") or os.environ.get("POISE_PAYLOAD")) == "plain"
        if plain and group.stats()["epoch_n_local"] < group.n_ranks * group.n_replicas:
            raise InvalidInput(
                'balance() unpickles samples, and with payload="plain" anybody who reaches the ranks\' ports can send '
                'some: leave payload at "curve", or use poise.Group with declared fields, which unpickles nothing'
            )

    def _no_samples(self, batch: Batch) -> Any:
        if self._empty is None:
            raise InvalidInput(
                f"micro-batch {batch.micro_batch} of step {batch.step} has no samples on rank {self._rank}: "
                "another rank had more loader batches in this step: even out (DistributedSampler, drop_last=True), "
                "or give balance() empty=, a function whose value stands for such a micro-batch"
            )
        return self._empty()

    def __len__(self) -> int:
        """The loader's length; with drop_last, without a last step that is short."""
        n = len(self._source)
        return n - n % self._accumulate if self._drop_last else n

    def close(self) -> None:
        """Ends a running iteration and leaves its group."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()
            pipeline.join()

    def __enter__(self) -> Balanced:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def set_epoch(self, epoch: int) -> None:
        """Passed on to the loader, its samplers and its dataset, whichever has a set_epoch()."""
        if self._source.set_epoch(epoch) == 0:
            raise AttributeError("neither the loader nor its sampler nor its dataset has a set_epoch()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    # ------------------------------------------------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Where reading stands: behind the last batch that was yielded, with the loader's own state as of then if it
        has state_dict() and load_state_dict(). Plain values (and what the loader's state is made of)."""
        return save_position(self._position, self._rank, self._n_ranks, self._loader_state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there with the next iteration. A loader's state is one rank's, so it is refused on another
        number of ranks, unless balance(loader_state=False)."""
        self.close()
        n_ranks, rank = self._where()
        self._position = load_position(state, rank, n_ranks, self._loader_state)
        if self._position.loader is not None:
            if not self._source.stateful:
                raise InvalidInput(
                    "the state holds a loader's state, and this loader has no load_state_dict(): use the same kind of "
                    "loader, or balance(loader_state=False)"
                )
            self._source.load_state(self._position.loader)
        self._resumed = True

    def _where(self) -> tuple[int, int]:
        from .ranks import find

        names = ("rank", "n_ranks", "replica", "n_replicas", "process_group", "mesh", "mesh_dim")
        found = find(**{name: self._options[name] for name in names if name in self._options})
        return found.n_ranks, found.rank


class BalancedIterator:
    """One epoch of Balanced. When it is gone (`break`, an exception), the epoch ends and its group is left."""

    def __init__(self, balanced: Balanced, pipeline: Pipeline) -> None:
        self._balanced = balanced
        self._pipeline = pipeline
        self._over = False

    def __iter__(self) -> BalancedIterator:
        return self

    def __next__(self) -> Any:
        item = self._pipeline.next()
        if item.position is not None:
            self._balanced._position = item.position
        if item.last and not self._over:
            self._over = True
            dropped = self._pipeline.dropped() if item.error is None else 0
            self._pipeline.close()
            if dropped:
                warnings.warn(
                    f"the epoch ended with step {self._balanced._position.step} as another rank has no more data; "
                    f"{dropped} samples that this rank's loader had read were dropped (see balance(end=))",
                    PoiseWarning,
                    stacklevel=2,
                )
        if item.error is not None:
            raise item.error
        if item.last:
            raise StopIteration
        self._balanced.info = item.info
        return (self._placed(item), item.info) if self._balanced._with_info else self._placed(item)

    def _placed(self, item: Any) -> Any:
        return self._balanced._placer.ready(item.batch)

    def __len__(self) -> int:
        return len(self._balanced)

    def close(self) -> None:
        """Ends the epoch."""
        self._pipeline.close()

    def __del__(self) -> None:
        self._pipeline.close(wait=not hasattr(sys, "last_value"))


@atexit.register
def _close_all() -> None:
    """Before poise.group's, which closes what is left."""
    for pipeline in list(_running):
        pipeline.close(wait=not hasattr(sys, "last_value"))
