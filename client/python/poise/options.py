# SPDX-License-Identifier: Apache-2.0
"""Group options: keyword arguments, by their C name, into struct poise_options.

Values are as in C, but enums may be words ("equal"), flags booleans (`plan_only=True`), strings are str, and caps by
phase a mapping from the phase's name or a list. What is left out, or None, is the library's default. What is not known
is an error
that lists the nearest names: a misspelt option that is ignored is found weeks later.
"""

from __future__ import annotations

import ctypes
import difflib
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _c
from .errors import InvalidInput, make

__all__ = ["Phase", "presets", "algorithms", "preset", "phases_of"]


@dataclass(frozen=True)
class Phase:
    """How a sample's cost follows from its length and attention in one phase of the model:
    passes * (linear * length + quadratic * attention + constant), in units of 1,024 FLOP.

    Attributes:
        name: such as "vision" or "llm"; unique in a group.
        linear, quadratic: for each token (patch), for each unit of attention.
        constant: for each sample whose length in this phase is not 0.
        passes: 1 frozen, 3 trained, 4 trained with recomputation.
        padded: a micro-batch costs its largest length times its count.
        barrier: ranks meet after this phase.
    """
    name: str
    linear: int = 0
    quadratic: int = 0
    constant: int = 0
    passes: int = 1
    padded: bool = False
    barrier: bool = False


def _names(name_of, text_of) -> dict[str, str]:
    found, i = {}, 0
    while (name := name_of(i)) is not None:
        found[name.decode()] = text_of(i).decode()
        i += 1
    return found


def presets() -> dict[str, str]:
    """Names of the library's cost presets (whole models) and what each is, in one line."""
    lib = _c.library()
    return _names(lib.poise_preset_name, lib.poise_preset_text)


def algorithms() -> dict[str, str]:
    """Names of the planner's algorithms and what each does, in one line."""
    lib = _c.library()
    return _names(lib.poise_algorithm_name, lib.poise_algorithm_text)


def preset(name: str) -> list[Phase]:
    """The phases of a preset, with their coefficients."""
    phases = (_c.Phase * _c.MAX_PHASES)()
    n, err = ctypes.c_uint32(), _c.Err()
    rc = _c.library().poise_preset(name.encode(), phases, ctypes.sizeof(_c.Phase), ctypes.byref(n), ctypes.byref(err))
    if rc < 0:
        raise _c.error(err, rc)
    return [Phase(p.name.decode(), p.linear, p.quadratic, p.constant, p.passes, bool(p.flags & _c.PHASE_PADDED),
                  bool(p.flags & _c.PHASE_BARRIER)) for p in phases[:n.value]]


def phases_of(cost: str | Sequence[Phase]) -> list[Phase]:
    """The phases that a `cost` argument (a preset's name or phases) stands for."""
    if isinstance(cost, str):
        return preset(cost)
    phases = list(cost)
    for phase in phases:
        if not isinstance(phase, Phase):
            raise InvalidInput(f"cost is a list with {phase!r}: give a preset's name or a list of poise.Phase")
    return phases


def phase_array(phases: Sequence[Phase]) -> ctypes.Array:
    """Phases as C has them."""
    array = (_c.Phase * max(1, len(phases)))()
    for to, phase in zip(array, phases):
        name = phase.name.encode()
        if len(name) >= _c.MAX_NAME:
            raise InvalidInput(f"the name of phase {phase.name!r} has {len(name)} bytes: at most {_c.MAX_NAME - 1} are "
                               "allowed")
        for member in ("linear", "quadratic", "constant", "passes"):
            put(to, member, getattr(phase, member), f"{member} of phase {phase.name}")
        to.name = name
        to.flags = (_c.PHASE_PADDED if phase.padded else 0) | (_c.PHASE_BARRIER if phase.barrier else 0)
    return array


_BITS = {ctypes.c_uint32: (0, 2**32 - 1), ctypes.c_uint64: (0, 2**64 - 1), ctypes.c_int64: (-2**63, 2**63 - 1),
         ctypes.c_size_t: (0, 2**64 - 1)}


def put(to: ctypes.Structure, member: str, value: Any, what: str) -> None:
    """Sets a number; ctypes itself cuts what does not fit without a word."""
    low, high = _BITS[_kind(type(to), member)]
    try:
        number = value.__index__()
    except AttributeError:
        raise InvalidInput(f"{what} is {value!r}: it must be an integer") from None
    if not low <= number <= high:
        raise InvalidInput(f"{what} is {number}: it must be {low} to {high}")
    setattr(to, member, number)


def _kind(cls: type[ctypes.Structure], member: str) -> type:
    return next(kind for name, kind in cls._fields_ if name == member)


def unknown(what: str, name: str, known: Sequence[str]) -> InvalidInput:
    """The error for a name that is none of `known`, with the nearest of them."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = "did you mean " + ", ".join(near) + "?" if near else "known are " + ", ".join(sorted(known))
    return InvalidInput(f"{what} {name!r} is not known: {hint}")


_FLAGS = {"plan_only": _c.PLAN_ONLY, "debug_slots": _c.DEBUG_SLOTS}
_BY_US = {"size", "phases", "phase_size", "n_phases"}
OPTION_NAMES = [name for name, _ in _c.Options._fields_ if name not in _BY_US] + list(_FLAGS)


def _caps(value: Any, phases: Sequence[Phase], what: str) -> list[int]:
    names = [phase.name for phase in phases]
    if isinstance(value, Mapping):
        for name in value:
            if name not in names:
                raise unknown(f"{what}: phase", name, names)
        value = [value.get(name, 0) for name in names]
    elif isinstance(value, int):
        value = [value] * len(names)
    if len(value) > len(names):
        raise InvalidInput(f"{what} has {len(value)} values for {len(names)} phases ({', '.join(names)})")
    return list(value)


def _flags(value: Any) -> int:
    if isinstance(value, int):
        return value
    bits = 0
    for word in [value] if isinstance(value, str) else value:
        if word not in _FLAGS:
            raise unknown("flag", word, list(_FLAGS))
        bits |= _FLAGS[word]
    return bits


def _set(opt: _c.Options, name: str, value: Any, phases: Sequence[Phase]) -> None:
    if name in _FLAGS:
        opt.flags |= _FLAGS[name] if value else 0
    elif name == "flags":
        opt.flags |= _flags(value)
    elif name in ("cap_length_rank", "cap_length_micro_batch"):
        for i, cap in enumerate(_caps(value, phases, name)):
            if not 0 <= cap <= _c.NO_CAP:
                raise InvalidInput(f"{name}[{i}] is {cap}: it must be 0 to {_c.NO_CAP} (poise.NO_CAP)")
            getattr(opt, name)[i] = cap
    elif _kind(_c.Options, name) is ctypes.c_char_p:
        if not isinstance(value, (str, bytes, os.PathLike)):
            raise InvalidInput(f"{name} is {value!r}: it must be a string")
        setattr(opt, name, os.fsencode(value))
    elif isinstance(value, str) and name in _c.ENUMS:
        setattr(opt, name, _c.enum(name, value))
    else:
        put(opt, name, value, name)


def make_options(values: Mapping[str, Any], phases: Sequence[Phase]) -> tuple[_c.Options, list[Any]]:
    """struct poise_options from keyword arguments, and what must outlive it."""
    opt = _c.Options(size=ctypes.sizeof(_c.Options), attempt=_c.NONE)
    array = phase_array(phases)
    for name, value in values.items():
        if name not in OPTION_NAMES:
            raise unknown("option", name, OPTION_NAMES)
        if value is not None:
            _set(opt, name, value, phases)
    if phases:
        opt.phases = array
        opt.phase_size = ctypes.sizeof(_c.Phase)
        opt.n_phases = len(phases)
    return opt, [array]


def check_count(n: int, limit: int, what: str) -> None:
    """An error where there are more than `limit` of something."""
    if n > limit:
        raise make(-errno.EINVAL, f"{n} {what}: at most {limit} are allowed")
