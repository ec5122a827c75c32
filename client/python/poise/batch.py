# SPDX-License-Identifier: Apache-2.0
"""A delivered micro-batch.

The memory under a batch is one slot of the library's ring. `Hold` owns it: the batch refers to it, so does every view,
and when the last of them is gone it gives the slot back. Tables (rows, totals, mapping) are copied when they are first
asked for; they are small and outlive the slot.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _c
from .errors import InvalidInput, UseAfterFork
from .options import unknown
from .tensors import TensorView

__all__ = ["Batch", "Row", "Totals", "Mapping", "Incoming", "Outgoing"]

_string_at = ctypes.string_at
_BATCH = _c.layout(_c.Batch)
_TENSOR = _c.layout(_c.Tensor)
_ROW = _c.layout(_c.Row)
_TOTALS = _c.layout(_c.Totals)
_MAPPING = _c.layout(_c.Mapping)
_IN = _c.layout(_c.MappingIn)
_OUT = _c.layout(_c.MappingOut)
_P = _c.MAX_PHASES

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Row(NamedTuple):
    """One sample of a micro-batch."""
    tag: int  # the user's
    origin_rank: int
    origin_index: int
    arrival_micro_batch: int
    loss_tokens: int
    weight_step: float  # 1 / loss tokens of the step
    weight_arrival: float  # 1 / (loss tokens of its arrival micro-batch x micro-batches of the step that hold a sample)


class Totals(NamedTuple):
    """Of a step over all ranks, the same on every rank. Costs in units of 1,024 FLOP."""
    n_samples: int
    loss_tokens: int
    bytes: int
    arrival_micro_batches: int
    bytes_moved: int
    samples_moved: int
    cost_before: int
    cost_after: int
    cost_mean: int
    length_micro_batch_before: tuple[int, ...]  # [phases]
    length_micro_batch_after: tuple[int, ...]
    lacking_before: int
    lacking_after: int
    plan_ns: int
    mode: str  # that this step was delivered in
    oversize: int
    bytes_between_nodes: int  # of bytes_moved


class Incoming(NamedTuple):
    """A sample that this rank received, in delivered order."""
    rank: int  # origin
    index: int
    micro_batch: int
    row: int


class Outgoing(NamedTuple):
    """Where one of this rank's own samples went, by index."""
    rank: int  # destination
    micro_batch: int
    row: int
    place: int  # in the destination's whole delivered order


class Mapping(NamedTuple):
    """A step's rank mapping as this rank sees it (C: in, out)."""
    incoming: list[Incoming]
    outgoing: list[Outgoing]


class Hold:
    """Owns a batch of the library until nothing refers to it. The library writes the batch into `pointer`."""

    __slots__ = ("pointer", "_release", "_forked", "__weakref__")

    def __init__(self, release: Any) -> None:
        self.pointer = ctypes.c_void_p()
        self._release = release
        self._forked = _forks

    def check(self) -> None:
        """An error in a child process, where touching the memory would be the end of it."""
        if self._forked != _forks:
            raise UseAfterFork("the batch belongs to the parent process: what it holds is not there in a child, unless "
                               "copied",
                               -errno.EPERM)

    def drop(self) -> None:
        """Gives the batch back now, whoever still looks at it."""
        address, self.pointer.value = self.pointer.value, None
        if address:
            self._release(address)

    def __del__(self) -> None:
        self.drop()


class _Own:
    """Memory of a copied batch: the assembled fields, one after the other."""

    __slots__ = ("block", "address", "__weakref__")

    def __init__(self, n_bytes: int) -> None:
        self.block = bytearray(n_bytes + 64)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.block))
        self.address = (address + 63) & ~63

    def check(self) -> None:
        """Fine in a child process as well."""


class Batch:
    """One balanced micro-batch.

    Attributes:
        step: the global batch it is part of.
        micro_batch, n_micro_batches: 0 to n - 1; n is the same on every rank.
        n_samples: may be 0.
        plan_id: 16 bytes, the same on every rank.
    """

    __slots__ = ("step", "micro_batch", "n_micro_batches", "n_samples", "plan_id", "_n_fields", "_addresses", "_hold",
                 "_rows",
                 "_totals", "_mapping", "_names", "_phases", "_moved", "_tables", "__weakref__")

    def __init__(self, hold: Hold, phases: Sequence[str] = ()) -> None:
        (self.step, self.micro_batch, self.n_micro_batches, self.n_samples, self._n_fields, rows, row_size, fields,
         tensor_size,
         values, totals, mapping, self.plan_id) = _BATCH.unpack(_string_at(hold.pointer.value, _BATCH.size))
        self._addresses = rows, row_size, fields, tensor_size, values, totals, mapping
        self._hold: Any = hold
        self._phases = phases
        self._rows: list[Row] | None = None
        self._totals: Totals | None = None
        self._mapping: Mapping | None = None
        self._names: dict[str, int] | None = None
        self._moved: list[tuple[int, int]] | None = None  # of a copy: (from, to) a field
        self._tables: tuple[bytes, bytes] | None = None  # of a copy: its tensors

    # ---------------------------------------------------------------------------------------------------------- tables

    def _check(self) -> None:
        if self._hold is None:
            raise InvalidInput(f"micro-batch {self.micro_batch} of step {self.step} was released")
        self._hold.check()

    @property
    def rows(self) -> list[Row]:
        """[n_samples] of what each sample is: tag, origin, loss tokens, weights."""
        if self._rows is None:
            self._check()
            address, size = self._addresses[:2]
            data = _string_at(address, size * self.n_samples) if self.n_samples else b""
            self._rows = [Row(*fields[:4], *fields[5:]) for fields in
                          (_ROW.unpack_from(data, i * size) for i in range(self.n_samples))]
        return self._rows

    @property
    def totals(self) -> Totals:
        """The step's totals over all ranks."""
        if self._totals is None:
            self._check()
            t = _TOTALS.unpack(_string_at(self._addresses[5], _TOTALS.size))
            n, rest = len(self._phases), 9 + 2 * _P
            self._totals = Totals(*t[:9], t[9:9 + n], t[9 + _P:9 + _P + n], *t[rest:rest + 3],
                                  _c.ENUMS["mode"][t[rest + 3]],
                                  t[rest + 5], t[rest + 6])
        return self._totals

    @property
    def mapping(self) -> Mapping:
        """The step's rank mapping: what this rank received, and where its own samples went."""
        if self._mapping is None:
            self._check()
            n_in, n_out, into, in_size, out, out_size = _MAPPING.unpack(_string_at(self._addresses[6], _MAPPING.size))
            self._mapping = Mapping([Incoming(*row) for row in _table(_IN, into, n_in, in_size)],
                                    [Outgoing(*row) for row in _table(_OUT, out, n_out, out_size)])
        return self._mapping

    @property
    def names(self) -> list[str]:
        """Names of the group's fields so far, in the order of the assembled tensors."""
        return list(self._by_name())

    def _by_name(self) -> dict[str, int]:
        if self._names is None:
            self._check()
            fields, size = self._addresses[2:4]
            self._names = {_string_at(_TENSOR.unpack(_string_at(fields + f * size, _TENSOR.size))[0]).decode(): f
                           for f in range(self._n_fields)}
        return self._names

    # --------------------------------------------------------------------------------------------------------- tensors

    def _index(self, name: str) -> int:
        by_name = self._by_name()
        if name not in by_name:
            raise KeyError(unknown("field", name, list(by_name)).text)
        return by_name[name]

    def _view(self, name: str, table: int, i: int) -> TensorView:
        self._check()
        if self._tables is not None:
            raw = _TENSOR.unpack_from(self._tables[table], i * _TENSOR.size)
        else:
            raw = _TENSOR.unpack(_string_at(self._addresses[2 + 2 * table] + i * self._addresses[3], _TENSOR.size))
        n = raw[3]
        address = raw[1]
        if address and self._moved is not None:
            start, to = self._moved[self._names[name]]  # type: ignore[index]
            address += to - start
        return TensorView(name, raw[2], raw[4:4 + n], raw[4 + _c.MAX_DIMS:4 + _c.MAX_DIMS + n], raw[-1], address,
                          self._hold)

    def field(self, name: str) -> TensorView:
        """The assembled field; KeyError if the group has none of that name. Empty if no sample here has it."""
        return self._view(name, 0, self._index(name))

    def value(self, i: int, name: str) -> TensorView:
        """Sample i's own part of a field, without padding."""
        f = self._index(name)
        if not -self.n_samples <= i < self.n_samples:
            raise IndexError(f"sample {i} of {self.n_samples}")
        return self._view(name, 1, (i % self.n_samples) * self._n_fields + f)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name()

    def __getitem__(self, name: str) -> TensorView:
        return self.field(name)

    def __len__(self) -> int:
        return self.n_samples

    # ------------------------------------------------------------------------------------------------------------- end

    def release(self) -> None:
        """Says that this object is not used any more. Its slot is free when no view of it is left, or now if there is
        none. Rows, totals and mapping that were read before stay."""
        self._hold = None

    def recycle(self) -> None:
        """Gives the slot back at once, views or not: what they show may change. For `reuse=True`."""
        hold, self._hold = self._hold, None
        if isinstance(hold, Hold):
            hold.drop()

    def detach(self) -> Batch:
        """Copies the payload into memory of its own and gives the slot back, as `copy=True` does. Returns self."""
        self._check()
        if self._tables is not None:
            return self
        self.rows, self.totals, self.mapping
        names = self._by_name()
        fields, size, values = self._addresses[2:5]
        tables = (_tensors(fields, self._n_fields, size), _tensors(values, self._n_fields * self.n_samples, size))
        spans = []
        total = 0
        for f in range(len(names)):
            raw = _TENSOR.unpack_from(tables[0], f * _TENSOR.size)
            spans.append((raw[1] or 0, raw[-1], total))
            total += (raw[-1] + 63) & ~63
        own = _Own(total)
        for start, n_bytes, at in spans:
            if n_bytes:
                ctypes.memmove(own.address + at, start, n_bytes)
        self._moved = [(start, own.address + at) for start, _, at in spans]
        self._tables = tables
        self._hold.drop()
        self._hold = own
        return self

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return (f"<poise.Batch step {self.step}, micro-batch {self.micro_batch} of {self.n_micro_batches}, "
                f"{self.n_samples} samples>")


def _tensors(address: int, n: int, size: int) -> bytes:
    """n tensors, cut to the size that is known here."""
    if size == _TENSOR.size:
        return _string_at(address, n * size) if n else b""
    return b"".join(_string_at(address + i * size, _TENSOR.size) for i in range(n))


def _table(row: Any, address: int, n: int, size: int) -> list[tuple[int, ...]]:
    data = _string_at(address, n * size) if n else b""
    return [row.unpack_from(data, i * size) for i in range(n)]
