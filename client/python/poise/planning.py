# SPDX-License-Identifier: Apache-2.0
"""The planner without a daemon: pure, deterministic, thread-safe.

`plan` is poise_plan() over Python lists. `balanced_partitions` is the helper that trainers of language models know from
Karmarkar-Karp balancing: a list of lengths into k lists of indices.
"""

from __future__ import annotations

import ctypes
import errno
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import _c
from .errors import InvalidInput, make
from .options import Phase, phase_array, phases_of, put, unknown

__all__ = ["Plan", "Place", "plan", "balanced_partitions", "get_seqlen_balanced_partitions"]

_QUALITY = [name for name, _ in _c.Quality._fields_]
_NUMBERS = {"tolerance_ppm", "micro_batch_size", "n_micro_batches", "stages", "image_encoder_dp", "cap_samples_rank",
            "cap_samples_micro_batch", "cap_bytes_rank"}
_WORDS = {"objective", "count", "cut"}
_BY_RANK = {"node", "speed_ppm", "sync_set"}
_BY_PHASE = {"cap_length_rank", "cap_length_micro_batch"}
OPTION_NAMES = sorted(_NUMBERS | _WORDS | _BY_RANK | _BY_PHASE | {"algorithm"})


class Place(NamedTuple):
    """Where a sample goes."""
    rank: int
    micro_batch: int
    row: int  # position in the micro-batch


class Plan:
    """A planned step.

    Attributes:
        n_ranks, n_micro_batches: the latter is the same on every rank.
        places: [rank][index] of Place: where each sample goes.
        quality: by C name (struct poise_quality): costs before, after, no plan can be below; bytes moved; in units of
            1,024 FLOP and bytes. Lists have one number a phase.
        plan_id: 16 bytes; equal inputs have equal ids.
    """

    def __init__(self, n_samples: Sequence[int], rank: array[int], micro_batch: array[int], row: array[int],
                 reason: bytes,
                 made: _c.Plan, n_phases: int) -> None:
        self.n_ranks = len(n_samples)
        self.n_micro_batches: int = made.n_micro_batches
        self.plan_id = bytes(made.plan_id)
        self.quality: dict[str, Any] = {}
        for name in _QUALITY:
            value = getattr(made.quality, name)
            self.quality[name] = value if isinstance(value, int) else list(value[:n_phases])
        self._reason = reason
        flat = list(map(Place, rank, micro_batch, row))
        self.places: list[list[Place]] = []
        at = 0
        for n in n_samples:
            self.places.append(flat[at:at + n])
            at += n

    def micro_batches(self, rank: int) -> list[list[tuple[int, int]]]:
        """[micro-batch][row] of (origin rank, index): what `rank` trains on."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(self.n_micro_batches)]
        for origin, places in enumerate(self.places):
            for index, place in enumerate(places):
                if place.rank == rank:
                    found[place.micro_batch].append((place.row, origin, index))
        return [[(origin, index) for _, origin, index in sorted(batch)] for batch in found]

    def reasons(self) -> list[list[str]]:
        """[rank][index]: why each sample is where it is, in words."""
        text = _c.library().poise_reason_text
        words = iter([(text(code) or b"").decode() for code in self._reason])
        return [[next(words) for _ in places] for places in self.places]

    def __repr__(self) -> str:
        q = self.quality
        return (f"<poise.Plan {sum(map(len, self.places))} samples on {self.n_ranks} ranks, {self.n_micro_batches} "
                f"micro-batches, "
                f"cost {q['objective_before']} to {q['objective_after']}, {q['samples_moved']} moved>")


# ------------------------------------------------------------------------------------------------------------ columns


def _column(code: str, values: Any, what: str) -> array[int]:
    try:
        return array(code, values)
    except (TypeError, OverflowError) as error:
        raise InvalidInput(f"{what}: {error}: it must be integers from 0 to 2^{8 * array(code).itemsize} - 1") from None


def _by_sample(code: str, rows: Sequence[Sequence[int]] | None, n_samples: Sequence[int],
               what: str) -> array[int] | None:
    """One number a sample, given by rank."""
    if rows is None:
        return None
    if [len(row) for row in rows] != list(n_samples):
        raise InvalidInput(f"{what} has {[len(row) for row in rows]} numbers by rank, lengths {list(n_samples)}")
    return _column(code, [number for row in rows for number in row], what)


def _by_phase(rows: Sequence[Sequence[Any]] | None, phases: Sequence[Phase], n_samples: Sequence[int],
              what: str) -> array[int] | None:
    """[phases][samples] from [rank][index] of numbers, sequences or mappings."""
    if rows is None:
        return None
    if [len(row) for row in rows] != list(n_samples):
        raise InvalidInput(f"{what} has {[len(row) for row in rows]} samples by rank, lengths {list(n_samples)}")
    flat = [sample for row in rows for sample in row]
    names = [phase.name for phase in phases]
    if len(names) == 1 and not (flat and hasattr(flat[0], "__len__")):
        return _column("Q", flat, what)
    for i, sample in enumerate(flat):
        if isinstance(sample, Mapping):
            wrong = [name for name in sample if name not in names]
            if wrong:
                raise unknown(f"{what} of sample {i}: phase", wrong[0], names)
            flat[i] = [sample.get(name, 0) for name in names]
        elif not hasattr(sample, "__len__") or len(sample) != len(names):
            raise InvalidInput(f"{what} of sample {i} is {sample!r:.60}: it must be {len(names)} numbers, of "
                               f"{', '.join(names)}")
    return _column("Q", [sample[phase] for phase in range(len(names)) for sample in flat], what)


def _address(column: array[int] | None) -> int | None:
    return column.buffer_info()[0] if column else None


# --------------------------------------------------------------------------------------------------------------- plan


def _caps(value: Any, phases: Sequence[Phase], what: str) -> array[int]:
    if isinstance(value, Mapping):
        names = [phase.name for phase in phases]
        for name in value:
            if name not in names:
                raise unknown(f"{what}: phase", name, names)
        value = [value.get(name, 0) for name in names]
    elif isinstance(value, int):
        value = [value] * len(phases)
    if len(value) != len(phases):
        raise InvalidInput(f"{what} has {len(value)} numbers for {len(phases)} phases")
    return _column("Q", value, what)


def _apply(req: _c.PlanRequest, options: Mapping[str, Any], phases: Sequence[Phase], n_ranks: int,
           keep: list[Any]) -> None:
    for name, value in options.items():
        if name not in OPTION_NAMES:
            raise unknown("option", name, OPTION_NAMES)
        if value is None:
            continue
        if name == "algorithm":
            req.algorithm = value.encode()
        elif name in _WORDS:
            setattr(req, name, _c.enum(name, value))
        elif name in _NUMBERS:
            put(req, name, value, name)
        else:
            column = _column("I", value, name) if name in _BY_RANK else _caps(value, phases, name)
            if name in _BY_RANK and len(column) != n_ranks:
                raise InvalidInput(f"{name} has {len(column)} numbers for {n_ranks} ranks")
            keep.append(column)
            setattr(req, name, _address(column))


def plan(lengths_per_rank: Sequence[Sequence[Any]], *, cost: str | Sequence[Phase] | None = None,
         attention: Sequence[Sequence[Any]] | None = None, nbytes: Sequence[Sequence[int]] | None = None,
         micro_batch: Sequence[Sequence[int]] | None = None, unit: Sequence[Sequence[int]] | None = None,
         **options: Any) -> Plan:
    """Plans one step.

    Args:
        lengths_per_rank: [rank][index]: a sample's length (tokens), or one number a phase of the cost, or a mapping by
            the phase's name. A rank may be empty.
        cost: a preset's name or phases; None: "length".
        attention: like lengths_per_rank; None: length squared.
        nbytes: [rank][index] of payload; None: 1 each.
        micro_batch: [rank][index] of the arrival micro-batch; None: consecutive equal pieces.
        unit: [rank][index]; samples of one rank and unit (not 0) move as one.
        options: as of a Group: algorithm, objective, count, cut, stages, tolerance_ppm, micro_batch_size,
            n_micro_batches, image_encoder_dp, caps; and by rank: node, speed_ppm, sync_set.
    """
    phases = phases_of("length" if cost is None else cost)
    n_samples = _column("I", [len(row) for row in lengths_per_rank], "samples")
    req = _c.PlanRequest(size=ctypes.sizeof(_c.PlanRequest), n_ranks=len(n_samples), n_phases=len(phases))
    columns = {"length": _by_phase(lengths_per_rank, phases, n_samples, "length"),
               "attention": _by_phase(attention, phases, n_samples, "attention"),
               "bytes": _by_sample("Q", nbytes, n_samples, "nbytes"),
               "micro_batch": _by_sample("I", micro_batch, n_samples, "micro_batch"),
               "unit": _by_sample("Q", unit, n_samples, "unit"), "n_samples": n_samples}
    for name, column in columns.items():
        setattr(req, name, _address(column))
    keep: list[Any] = [phase_array(phases)]
    req.phases = ctypes.addressof(keep[0])
    req.phase_size = ctypes.sizeof(_c.Phase)
    _apply(req, options, phases, len(n_samples), keep)
    rank, batch, row, reason, made = _run(req, sum(n_samples))
    return Plan(n_samples, rank, batch, row, reason.tobytes(), made, len(phases))


def _run(req: _c.PlanRequest, n: int) -> tuple[array[int], array[int], array[int], array[int], _c.Plan]:
    rank, batch, row = (array("I", bytes(4 * max(1, n))) for _ in range(3))
    reason = array("B", bytes(max(1, n)))
    made = _c.Plan(size=ctypes.sizeof(_c.Plan), rank=_address(rank), micro_batch=_address(batch), row=_address(row),
                   reason=_address(reason))
    err = _c.Err()
    rc = _c.library().poise_plan(ctypes.byref(req), ctypes.byref(made), ctypes.byref(err))
    if rc < 0:
        raise _c.error(err, rc)
    del rank[n:], batch[n:], row[n:], reason[n:]
    return rank, batch, row, reason, made


# --------------------------------------------------------------------------------------------------------- partitions

_LENGTH = (Phase("length", linear=1),)
_DIFFERENCING_MAX = 1 << 27  # the planner's limit of items x lists for largest differencing


def balanced_partitions(lengths: Sequence[int], k: int, equal_size: bool = False) -> list[list[int]]:
    """Splits indices 0 to len(lengths) - 1 into k lists whose summed lengths are as equal as can be.

    Largest differencing (Karmarkar and Karp). With equal sizes that is poor where lengths differ much, as it begins
    with chunks of like lengths; so the better one of it and of largest-first is taken.

    Args:
        lengths: integers >= 0; the cost of an item is its length.
        k: number of lists, each of which gets at least one item; at most len(lengths).
        equal_size: all lists have the same number of items; k must divide len(lengths).

    Returns: [k] lists of indices, sorted in each.
    """
    values = _column("Q", lengths, "lengths")
    n = len(values)
    if k < 1 or n < k:
        raise InvalidInput(f"{n} lengths cannot be split into {k} lists that each have an item")
    if equal_size and n % k:
        raise InvalidInput(f"{n} lengths cannot be split into {k} lists of equal size")
    if n * k > _DIFFERENCING_MAX:
        algorithms = ["greedy"]
    else:
        algorithms = ["karmarkar_karp", "greedy"] if equal_size else ["karmarkar_karp"]
    plans = [_partition(values, k, equal_size, algorithm) for algorithm in algorithms]
    parts = min(plans, key=lambda made: made[0])[1]  # the first of equals
    if not equal_size:
        _fill_empty(parts, values)
    return parts


def _partition(values: array[int], k: int, equal_size: bool, algorithm: str) -> tuple[int, list[list[int]]]:
    """One algorithm's lists, and the largest sum."""
    n = len(values)
    counts = array("I", [n // k + (i < n % k) for i in range(k)])
    phases = phase_array(_LENGTH)
    none = array("Q", [_c.NO_CAP])
    req = _c.PlanRequest(size=ctypes.sizeof(_c.PlanRequest), n_ranks=k, n_phases=1, n_samples=_address(counts),
                         length=_address(values), phases=ctypes.addressof(phases), phase_size=ctypes.sizeof(_c.Phase),
                         algorithm=algorithm.encode(), count=_c.enum("count", "equal" if equal_size else "free"),
                         tolerance_ppm=1,
                         cap_bytes_rank=_c.NO_CAP, cap_length_rank=_address(none),
                         cap_length_micro_batch=_address(none))
    rank, _, _, _, made = _run(req, n)
    parts: list[list[int]] = [[] for _ in range(k)]
    for i, r in enumerate(rank):
        parts[r].append(i)
    return made.quality.rank_max_after, parts


def _fill_empty(parts: list[list[int]], lengths: Sequence[int]) -> None:
    """An empty list takes the smallest item of a list that has two or more, where the planner left one empty (items of
    length 0, fewer large items than lists)."""
    empty = [part for part in parts if not part]
    if not empty:
        return
    spare = sorted((lengths[i], i) for part in parts if len(part) > 1 for i in part)
    owner = {i: part for part in parts for i in part}
    for _, i in spare:
        if not empty:
            return
        if len(owner[i]) > 1:
            owner[i].remove(i)
            empty.pop().append(i)
    if empty:
        raise make(-errno.EINVAL, f"{len(empty)} lists stay empty")


def get_seqlen_balanced_partitions(seqlen_list: Sequence[int], k_partitions: int,
                                   equal_size: bool = False) -> list[list[int]]:
    """balanced_partitions() under the name and with the arguments that users of Karmarkar-Karp balancing know."""
    return balanced_partitions(seqlen_list, k_partitions, equal_size)
