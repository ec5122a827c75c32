# SPDX-License-Identifier: Apache-2.0
"""Balancing by indices: where lengths are known before reading, nothing has to move.

Every rank computes the same plan from the same lengths, so there is no daemon, no message, no byte. What a step
contains over all ranks is what torch's DistributedSampler with BatchSampler would have given it; only who gets which
index changes.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import ranks
from .errors import InvalidInput
from .options import Phase, phases_of, unknown
from .planning import OPTION_NAMES, plan

__all__ = ["BatchSampler"]

_STATE_VERSION = 1
# Of poise.plan; a batch_sampler's counts are given, so those that change them are left out.
_OPTIONS = [name for name in OPTION_NAMES if name not in ("count", "cut", "micro_batch_size", "n_micro_batches")]


class BatchSampler:
    """A `batch_sampler` for a DataLoader that balances each global batch over the data-parallel ranks.

    Args:
        lengths: [samples] of the dataset: tokens; or one number a phase of the cost; or a mapping from the phase's name
            to [samples] of numbers.
        batch_size: samples a rank and batch.
        rank, n_ranks, process_group, mesh, mesh_dim: the data-parallel rank; None: see poise.ranks. Replicas of a rank
            (tensor, context, pipeline parallel peers) get the same batches.
        cost: a preset's name or phases; None: "length".
        attention: like lengths; None: length squared.
        shuffle, seed: as of DistributedSampler; call set_epoch() before each epoch.
        drop_last: what happens to samples that do not fill the last batch of all ranks.
            False: all are read. Where the dataset is no multiple of n_ranks, samples from its beginning are read twice,
            so that all ranks have as many; the last batch may be smaller.
            True: nothing is read twice. The samples that are too many for n_ranks are left out, and so is a last batch
            that is not full. (DistributedSampler and BatchSampler with that drop_last, both.)
        accumulate: so many batches make one step (gradient accumulation), and are balanced together. The last step of
            an epoch may have fewer.
        generator: "torch": the permutation of torch.randperm, as DistributedSampler has it; "python": Python's own,
            without torch; "auto": torch's if torch can be imported. All ranks need the same.
        options: of poise.plan: algorithm, objective, tolerance_ppm, speed_ppm, caps ... Every batch keeps its number
            of samples; only those of a last step that is not full are cut evenly.

    len() is the number of batches of an epoch. state_dict() and load_state_dict() resume within an epoch.
    """

    def __init__(self, lengths: Sequence[Any] | Mapping[str, Sequence[int]], batch_size: int, *,
                 rank: int | None = None,
                 n_ranks: int | None = None, process_group: Any = None, mesh: Any = None,
                 mesh_dim: str | Sequence[str] | None = None, cost: str | Sequence[Phase] | None = None,
                 attention: Sequence[Any] | Mapping[str, Sequence[int]] | None = None, shuffle: bool = True,
                 seed: int = 0,
                 drop_last: bool = False, accumulate: int = 1, generator: str = "auto", **options: Any) -> None:
        if batch_size < 1 or accumulate < 1:
            raise InvalidInput(f"batch_size is {batch_size} and accumulate is {accumulate}: both must be at least 1")
        if generator not in ("auto", "torch", "python"):
            raise InvalidInput(f"generator is {generator!r}: it must be auto, torch or python")
        for name in options:
            if name not in _OPTIONS:
                raise unknown("option", name, _OPTIONS)
        where = ranks.find(rank, n_ranks, process_group=process_group, mesh=mesh, mesh_dim=mesh_dim)
        self.rank, self.n_ranks = where.rank, where.n_ranks
        self.batch_size = batch_size
        self.accumulate = accumulate
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._phases = phases_of("length" if cost is None else cost)
        self._columns = _columns(lengths, self._phases, "lengths")
        self._attention = None if attention is None else _columns(attention, self._phases, "attention")
        self._n = len(self._columns[0])
        if self._attention is not None and len(self._attention[0]) != self._n:
            raise InvalidInput(f"attention has {len(self._attention[0])} samples, lengths {self._n}")
        self._torch = generator == "torch" or (generator == "auto" and _has_torch())
        self._options = options
        self._begin = 0  # batches of the next epoch that were read before
        self._read = 0  # batches of this epoch that were handed out

    # ---------------------------------------------------------------------------------------------------------- epochs

    def _samples_per_rank(self) -> int:
        n = self._n // self.n_ranks if self.drop_last else -(-self._n // self.n_ranks)
        return n // self.batch_size * self.batch_size if self.drop_last else n

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return -(-self._samples_per_rank() // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Another epoch has another permutation. Like DistributedSampler's."""
        if epoch != self.epoch:
            self._begin = self._read = 0
        self.epoch = epoch

    def _permutation(self) -> Sequence[int]:
        """The dataset's order in this epoch, as DistributedSampler deals it out: padded from its beginning or cut."""
        order: list[int]
        if not self.shuffle:
            order = list(range(self._n))
        elif self._torch:
            import torch
            generator = torch.Generator()
            generator.manual_seed(self.seed + self.epoch)
            order = torch.randperm(self._n, generator=generator).tolist()
        else:
            order = list(range(self._n))
            random.Random(self.seed + self.epoch).shuffle(order)
        if self.drop_last or not order:
            return order
        short = -self._n % self.n_ranks
        while short > 0:
            order += order[:short]
            short = -len(order) % self.n_ranks
        return order

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of indices, batch by batch."""
        order = self._permutation()
        total = self._samples_per_rank()
        first, self._begin = self._begin, 0
        self._read = first
        per_step = self.batch_size * self.accumulate
        for at in range(first // self.accumulate * per_step, total, per_step):
            for batch in self._step(order, at, min(per_step, total - at))[max(0, first - at // self.batch_size):]:
                self._read += 1
                yield batch

    # ----------------------------------------------------------------------------------------------------------- steps

    def _step(self, order: Sequence[int], at: int, n: int) -> list[list[int]]:
        """This rank's batches of the step whose samples are at .. at + n of each rank."""
        dealt = [order[at * self.n_ranks + rank:(at + n) * self.n_ranks:self.n_ranks] for rank in range(self.n_ranks)]
        one = len(self._phases) == 1
        made = plan([self._of(self._columns, indices, one) for indices in dealt], cost=self._phases,
                    attention=self._attention and [self._of(self._attention, indices, one) for indices in dealt],
                    micro_batch_size=self.batch_size, **self._options)
        return [[dealt[origin][index] for origin, index in batch] for batch in made.micro_batches(self.rank)]

    @staticmethod
    def _of(columns: list[array[int]], indices: Sequence[int], one: bool) -> list[Any]:
        if one:
            column = columns[0]
            return [column[i] for i in indices]
        return [[column[i] for column in columns] for i in indices]

    # ---------------------------------------------------------------------------------------------------------- resume

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """What load_state_dict() takes to go on.

        Args:
            batches: batches of this epoch that the trainer has consumed; None: that were handed out, which is more
                where DataLoader workers read ahead.
        """
        read = self._read if batches is None else batches
        if not 0 <= read <= len(self):
            raise InvalidInput(f"batches is {read}: an epoch has {len(self)}")
        return {"version": _STATE_VERSION, "epoch": self.epoch, "batches": read,
                "samples": read * self.batch_size * self.n_ranks,
                "seed": self.seed, "shuffle": self.shuffle, "drop_last": self.drop_last, "n_samples": self._n,
                "n_ranks": self.n_ranks, "batch_size": self.batch_size, "accumulate": self.accumulate,
                "torch": self._torch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on behind what was read. On another number of ranks, or with another batch size, only
        between steps of the new size."""
        if state.get("version") != _STATE_VERSION:
            raise InvalidInput(f"the state has version {state.get('version')}, this is {_STATE_VERSION}")
        for name, mine in (("n_samples", self._n), ("seed", self.seed), ("shuffle", self.shuffle), ("torch",
                                                                                                    self._torch)):
            if state[name] != mine:
                raise InvalidInput(f"the state was saved with {name} {state[name]}, this sampler has {mine}: they "
                                   "have other orders")
        batches = state["batches"]
        same = all(state[name] == mine for name, mine in
                   (("n_ranks", self.n_ranks), ("batch_size", self.batch_size), ("accumulate", self.accumulate)))
        if batches == _length_of(state):
            batches = len(self)
        elif not same:
            step = self.batch_size * self.n_ranks * self.accumulate
            saved = state["batch_size"] * state["n_ranks"] * state["accumulate"]
            if state["samples"] % step or state["samples"] % saved:
                raise InvalidInput(f"the state was saved after {state['samples']} samples of an epoch with {saved} a "
                                   f"step "
                                   f"({state['n_ranks']} ranks): this sampler has {step} a step "
                                   f"({self.n_ranks} ranks), "
                                   "of which "
                                   "that is no multiple")
            batches = state["samples"] // (self.batch_size * self.n_ranks)
        self.epoch = state["epoch"]
        self._begin = self._read = min(batches, len(self))


def _length_of(state: Mapping[str, Any]) -> int:
    """Batches of an epoch of the sampler that saved the state."""
    n, n_ranks, size = state["n_samples"], state["n_ranks"], state["batch_size"]
    return n // n_ranks // size if state["drop_last"] else -(-(-(-n // n_ranks)) // size)


def _has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def _columns(values: Sequence[Any] | Mapping[str, Sequence[int]], phases: Sequence[Phase],
             what: str) -> list[array[int]]:
    """One compact array a phase."""
    names = [phase.name for phase in phases]
    if isinstance(values, Mapping):
        for name in values:
            if name not in names:
                raise unknown(f"{what}: phase", name, names)
        n = {len(column) for column in values.values()}
        if len(n) != 1:
            raise InvalidInput(f"{what} has {sorted(n)} samples by phase: they must be as many")
        rows = [values.get(name) or [0] * n.copy().pop() for name in names]
    elif len(names) == 1 and not (len(values) and hasattr(values[0], "__len__")):
        rows = [values]
    else:
        if any(len(row) != len(names) for row in values):
            raise InvalidInput(f"{what} must have {len(names)} numbers a sample ({', '.join(names)})")
        rows = [[row[i] for row in values] for i in range(len(names))]
    try:
        return [array("Q", column) for column in rows]
    except (TypeError, OverflowError) as error:
        raise InvalidInput(f"{what} must be integers from 0 to 2^64 - 1: {error}") from None
