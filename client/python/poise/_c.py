# SPDX-License-Identifier: Apache-2.0
"""libpoise as ctypes sees it: the structs of include/poise.h member by member, prototypes, and where the library is.

tests/python/test_structs.py compares every size, offset and type with what a C compiler says of the header, so a member
that is missing here cannot go unnoticed. What is read or written often goes through struct.Struct objects that are made
from the same declarations (see `layout`), since one unpack is many times cheaper than ctypes' attributes.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from ctypes import (POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_ubyte,
                    c_uint32, c_uint64,
                    c_void_p)
from pathlib import Path

from ._version import __version__
from .errors import LibraryNotFound, PoiseError, VersionMismatch, make

MAX_DIMS = 8
MAX_PHASES = 8
MAX_EXTENTS = 4
MAX_FIELDS = 256
MAX_NAME = 64
NONE = 0xFFFFFFFF
NO_CAP = 0xFFFFFFFFFFFFFFFF
DEFAULT_MICRO_BATCH = -(1 << 63)
PHASE_PADDED, PHASE_BARRIER = 1, 2
PLAN_ONLY, DEBUG_SLOTS = 1, 2
INFO, WARNING, ERROR = 6, 4, 3

DTYPES = ("bytes", "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
          "bfloat16",
          "float32", "float64", "float8_e4m3", "float8_e5m2", "complex64", "complex128")
ITEM_SIZES = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 8, 16)

# By member of struct poise_options (or another struct): the names of its values, by their number.
ENUMS = {
    "mode": ("on", "shadow", "off"),
    "count": ("equal", "bounded", "free"),
    "objective": ("step", "microbatch", "pipeline"),
    "cut": ("fixed", "by_cost", "as_needed"),
    "end": ("stop", "continue"),
    "assembly": ("concat", "padded", "opaque"),
    "pad_side": ("right", "left"),
    "pad_scope": ("micro_batch", "step", "fixed"),
    "unit_layout": ("together", "transposed"),
}

# ------------------------------------------------------------------------------------------------------------- structs


class Err(ctypes.Structure):
    _fields_ = [("code", c_int32), ("rank", c_uint32), ("sample", c_uint32), ("reserved", c_uint32), ("step", c_uint64),
                ("field", c_char * MAX_NAME), ("text", c_char * 512)]


class Phase(ctypes.Structure):
    _fields_ = [("name", c_char * MAX_NAME), ("linear", c_uint64), ("quadratic", c_uint64), ("constant", c_uint64),
                ("passes", c_uint32), ("flags", c_uint32)]


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("job", c_char_p), ("group", c_char_p), ("rank", c_uint32), ("n_ranks", c_uint32),
        ("replica", c_uint32), ("n_replicas", c_uint32), ("attempt", c_uint32), ("flags", c_uint32),
        ("socket_dir", c_char_p), ("coordinators", c_char_p), ("first_step", c_uint64),
        ("cost", c_char_p), ("phases", POINTER(Phase)), ("phase_size", c_size_t), ("n_phases", c_uint32),
        ("mode", c_uint32), ("algorithm", c_char_p), ("objective", c_uint32), ("count", c_uint32), ("cut", c_uint32),
        ("tolerance_ppm", c_uint32), ("micro_batch_size", c_uint32), ("n_micro_batches", c_uint32), ("stages",
                                                                                                     c_uint32),
        ("sync_set", c_uint32), ("speed_ppm", c_uint32), ("end", c_uint32), ("image_encoder_dp", c_uint32),
        ("cap_samples_rank", c_uint64), ("cap_samples_micro_batch", c_uint64), ("cap_bytes_rank", c_uint64),
        ("cap_length_rank", c_uint64 * MAX_PHASES), ("cap_length_micro_batch", c_uint64 * MAX_PHASES),
        ("memory_budget", c_uint64), ("prefetch_depth", c_uint32), ("n_iterators", c_uint32), ("verify_first",
                                                                                               c_uint32),
        ("verify_every", c_uint32), ("daemon_timeout_ms", c_int64), ("open_timeout_ms", c_int64),
        ("peer_timeout_ms", c_int64), ("node_timeout_ms", c_int64), ("close_timeout_ms", c_int64),
        ("record", c_char_p), ("record_max_bytes", c_uint64), ("interface", c_char_p), ("audit", c_uint64),
        ("payload", c_char_p), ("max_bytes_per_s", c_uint64), ("payload_threads", c_uint32),
    ]


class Field(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_uint32), ("assembly", c_uint32), ("n_dims", c_uint32), ("axis",
                                                                                                        c_uint32),
                ("shape", c_int64 * MAX_DIMS), ("axis_name", c_char_p * MAX_DIMS), ("pad_side", c_uint32),
                ("pad_scope", c_uint32), ("pad_multiple", c_uint32), ("n_divisors", c_uint32), ("pad_to", c_uint64),
                ("pad_bits", c_uint64), ("rows_of", c_char_p), ("divisor", c_uint32 * MAX_DIMS)]


class Value(ctypes.Structure):
    _fields_ = [("field", c_char_p), ("data", c_void_p), ("n_dims", c_uint32), ("reserved", c_uint32),
                ("shape", c_int64 * MAX_DIMS)]


class Sample(ctypes.Structure):
    _fields_ = [("tag", c_uint64), ("length", c_void_p), ("attention", c_void_p), ("loss_tokens", c_int64),
                ("micro_batch", c_int64), ("unit", c_uint64), ("unit_layout", c_uint32), ("n_values", c_uint32),
                ("values", c_void_p), ("value_size", c_size_t), ("bytes", c_uint64)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("dtype", c_uint32), ("n_dims", c_uint32),
                ("shape", c_int64 * MAX_DIMS), ("stride", c_int64 * MAX_DIMS), ("bytes", c_uint64)]


class Row(ctypes.Structure):
    _fields_ = [("tag", c_uint64), ("origin_rank", c_uint32), ("origin_index", c_uint32), ("arrival_micro_batch",
                                                                                           c_uint32),
                ("reserved", c_uint32), ("loss_tokens", c_uint64), ("weight_step", c_double), ("weight_arrival",
                                                                                               c_double)]


class Totals(ctypes.Structure):
    _fields_ = [("n_samples", c_uint64), ("loss_tokens", c_uint64), ("bytes", c_uint64), ("arrival_micro_batches",
                                                                                          c_uint64),
                ("bytes_moved", c_uint64), ("samples_moved", c_uint64), ("cost_before", c_uint64), ("cost_after",
                                                                                                    c_uint64),
                ("cost_mean", c_uint64), ("length_micro_batch_before", c_uint64 * MAX_PHASES),
                ("length_micro_batch_after", c_uint64 * MAX_PHASES), ("lacking_before", c_uint64),
                ("lacking_after", c_uint64), ("plan_ns", c_uint64), ("mode", c_uint32), ("reserved", c_uint32),
                ("oversize", c_uint64), ("bytes_between_nodes", c_uint64)]


class MappingIn(ctypes.Structure):
    _fields_ = [("rank", c_uint32), ("index", c_uint32), ("micro_batch", c_uint32), ("row", c_uint32)]


class MappingOut(ctypes.Structure):
    _fields_ = [("rank", c_uint32), ("micro_batch", c_uint32), ("row", c_uint32), ("place", c_uint32)]


class Mapping(ctypes.Structure):  # C's `in` and `out`; `in` is a keyword here
    _fields_ = [("n_in", c_uint32), ("n_out", c_uint32), ("in_", c_void_p), ("in_size", c_size_t), ("out", c_void_p),
                ("out_size", c_size_t)]


class Batch(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("micro_batch", c_uint32), ("n_micro_batches", c_uint32), ("n_samples", c_uint32),
                ("n_fields", c_uint32), ("rows", c_void_p), ("row_size", c_size_t), ("fields", c_void_p),
                ("tensor_size", c_size_t), ("values", c_void_p), ("totals", c_void_p), ("mapping", c_void_p),
                ("plan_id", c_ubyte * 16)]


class Note(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("severity", c_uint32), ("dropped", c_uint32), ("text", c_char * 512)]


class Stats(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in (
        "steps_submitted", "steps_decided", "steps_delivered", "samples_in", "samples_out", "samples_dropped",
        "samples_verified", "samples_corrupt", "bytes_out", "bytes_local", "bytes_remote", "arena_bytes",
        "budget_bytes",
        "pipeline_ns_last", "shuffle_ns_total", "assembled_bytes_total")] + [("depth", c_uint32), ("epoch_n_local",
                                                                                                   c_uint32)]


class Pad(ctypes.Structure):
    _fields_ = [("axis_mask", c_uint32), ("multiple", c_uint32), ("fixed", c_uint64 * MAX_EXTENTS), ("unit_bytes",
                                                                                                     c_uint64)]


class PlanRequest(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("n_ranks", c_uint32), ("n_phases", c_uint32), ("n_samples", c_void_p), ("length",
                                                                                                     c_void_p),
        ("attention", c_void_p), ("bytes", c_void_p), ("micro_batch", c_void_p), ("unit", c_void_p), ("extent",
                                                                                                      c_void_p),
        ("pads", c_void_p), ("pad_size", c_size_t), ("n_extents", c_uint32), ("n_pads", c_uint32),
        ("packed_bytes", c_void_p), ("node", c_void_p), ("speed_ppm", c_void_p), ("sync_set", c_void_p),
        ("phases", c_void_p), ("phase_size", c_size_t), ("algorithm", c_char_p), ("objective", c_uint32),
        ("count", c_uint32), ("cut", c_uint32), ("stages", c_uint32), ("tolerance_ppm", c_uint32),
        ("micro_batch_size", c_uint32), ("n_micro_batches", c_uint32), ("image_encoder_dp", c_uint32),
        ("reserved", c_uint32), ("cap_samples_rank", c_uint64), ("cap_samples_micro_batch", c_uint64),
        ("cap_bytes_rank", c_uint64), ("cap_length_rank", c_void_p), ("cap_length_micro_batch", c_void_p),
    ]


class Quality(ctypes.Structure):
    _fields_ = [
        ("objective_before", c_uint64), ("objective_after", c_uint64), ("objective_bound", c_uint64),
        ("rank_max_before", c_uint64), ("rank_max_after", c_uint64), ("rank_mean", c_uint64), ("samples_moved",
                                                                                               c_uint64),
        ("bytes_moved", c_uint64), ("bytes_total", c_uint64), ("bytes_floor", c_uint64), ("bytes_between_nodes",
                                                                                          c_uint64),
        ("length_micro_batch_before", c_uint64 * MAX_PHASES), ("length_micro_batch_after", c_uint64 * MAX_PHASES),
        ("length_rank_before", c_uint64 * MAX_PHASES), ("length_rank_after", c_uint64 * MAX_PHASES),
        ("bytes_rank_before", c_uint64), ("bytes_rank_after", c_uint64), ("lacking_before", c_uint64),
        ("lacking_after", c_uint64), ("oversize", c_uint64),
    ]


class Plan(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("rank", c_void_p), ("micro_batch", c_void_p), ("row", c_void_p), ("reason",
                                                                                                       c_void_p),
                ("n_micro_batches", c_uint32), ("reserved", c_uint32), ("quality", Quality), ("plan_id", c_ubyte * 16)]


# C's name of each, for the test and for messages.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "poise_err": Err, "poise_phase": Phase, "poise_options": Options, "poise_field": Field, "poise_value": Value,
    "poise_sample": Sample, "poise_tensor": Tensor, "poise_row": Row, "poise_totals": Totals,
    "poise_mapping_in": MappingIn,
    "poise_mapping_out": MappingOut, "poise_mapping": Mapping, "poise_batch": Batch, "poise_note": Note,
    "poise_stats": Stats, "poise_pad": Pad, "poise_plan_request": PlanRequest, "poise_plan": Plan,
    "poise_quality": Quality,
}


class PyBuffer(ctypes.Structure):
    """Python's own Py_buffer: the address and shape of anything that has the buffer protocol."""
    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int),
                ("ndim", c_int), ("format", c_char_p), ("shape", POINTER(c_ssize_t)), ("strides", c_void_p),
                ("suboffsets", c_void_p), ("internal", c_void_p)]


# ------------------------------------------------------------------------------------------------------------ layouts

_CODES = {c_uint64: "Q", c_int64: "q", c_uint32: "I", c_int32: "i", c_double: "d", c_char_p: "P", c_void_p: "P",
          c_size_t: "N"}


def layout(cls: type[ctypes.Structure]) -> struct.Struct:
    """A struct.Struct that packs and unpacks all members of `cls` (arrays of numbers item by item, of bytes as one)."""
    text = "@"
    for _, kind in cls._fields_:
        if issubclass(kind, ctypes.Array):
            item = kind._type_
            text += f"{kind._length_}s" if item in (c_char, c_ubyte) else f"{kind._length_}{_CODES[item]}"
        else:
            text += _CODES.get(kind, "P")
    made = struct.Struct(text)
    if made.size != ctypes.sizeof(cls):
        raise AssertionError(f"{cls.__name__}: {made.size} bytes as {text}, {ctypes.sizeof(cls)} as a struct")
    return made


# ------------------------------------------------------------------------------------------------------------ library

_SONAME = "libpoise.so." + __version__.split(".")[0]

_PROTOTYPES = {
    "poise_dtype_name": (c_char_p, [c_uint32]),
    "poise_dtype_bytes": (c_uint32, [c_uint32]),
    "poise_version": (c_char_p, []),
    "poise_open": (c_int, [c_void_p, c_void_p, c_void_p]),
    "poise_close": (c_int, [c_void_p, c_void_p]),
    "poise_interrupt": (None, [c_void_p]),
    "poise_hurry": (None, [c_void_p]),
    "poise_declare": (c_int, [c_void_p, c_void_p, c_uint32, c_size_t, c_void_p]),
    "poise_alloc": (c_int, [c_void_p, c_uint64, c_int64, c_void_p, c_void_p]),
    "poise_discard": (c_int, [c_void_p, c_void_p]),
    "poise_submit": (c_int, [c_void_p, c_uint64, c_void_p, c_uint32, c_size_t, c_int64, c_void_p]),
    "poise_fail": (c_int, [c_void_p, c_uint64, c_char_p, c_int64, c_void_p]),
    "poise_end": (c_int, [c_void_p, c_uint64, c_int64, c_void_p]),
    "poise_next": (c_int, [c_void_p, c_uint32, c_int64, c_void_p, c_void_p]),
    "poise_release": (None, [c_void_p]),
    "poise_batch_field": (c_void_p, [c_void_p, c_char_p]),
    "poise_notice": (c_int, [c_void_p, c_void_p, c_size_t]),
    "poise_report": (c_int, [c_void_p, c_uint64, c_uint64, c_void_p]),
    "poise_stats": (c_int, [c_void_p, c_void_p, c_size_t]),
    "poise_reason_text": (c_char_p, [c_uint32]),
    "poise_plan": (c_int, [c_void_p, c_void_p, c_void_p]),
    "poise_algorithm_name": (c_char_p, [c_uint32]),
    "poise_algorithm_text": (c_char_p, [c_uint32]),
    "poise_preset_name": (c_char_p, [c_uint32]),
    "poise_preset_text": (c_char_p, [c_uint32]),
    "poise_preset": (c_int, [c_char_p, c_void_p, c_size_t, c_void_p, c_void_p]),
}

_library: ctypes.CDLL | None = None


def _candidates() -> list[str]:
    """Where the library may be, best first: POISE_LIBRARY alone if it is set, else beside the package, else the
    linker's places."""
    named = os.environ.get("POISE_LIBRARY")
    if named:
        return [named]
    here = Path(__file__).resolve().parent
    # PREFIX/lib/python3*/dist-packages/poise: the library is one or two folders above the packages' one.
    beside = [str(folder / _SONAME) for folder in list(here.parents)[1:4] if (folder / _SONAME).exists()]
    return beside + [_SONAME]


def path_of(lib: ctypes.CDLL) -> str:
    """The file that was loaded, as the linker knows it."""

    class Info(ctypes.Structure):
        _fields_ = [("fname", c_char_p), ("fbase", c_void_p), ("sname", c_char_p), ("saddr", c_void_p)]

    info = Info()
    try:
        dladdr = ctypes.CDLL(None).dladdr
        dladdr.argtypes = [c_void_p, c_void_p]
        if dladdr(ctypes.cast(lib.poise_version, c_void_p), ctypes.byref(info)) and info.fname:
            return os.fsdecode(info.fname)
    except (AttributeError, OSError):
        pass
    return lib._name


def _check_version(lib: ctypes.CDLL) -> None:
    found = lib.poise_version().decode()
    if found != __version__:
        raise VersionMismatch(
            f"the package poise is {__version__} ({Path(__file__).resolve().parent}), libpoise is {found} "
            f"({path_of(lib)}): install both from one release, or set POISE_LIBRARY to a library of {__version__}")


def _open_library() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        try:
            lib = ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
            continue
        try:
            lib.poise_version.restype = c_char_p
        except AttributeError:
            raise LibraryNotFound(f"{path} is not libpoise: it has no poise_version()") from None
        _check_version(lib)
        for name, (restype, argtypes) in _PROTOTYPES.items():
            function = getattr(lib, name)
            function.restype = restype
            function.argtypes = argtypes
        return lib
    raise LibraryNotFound("libpoise was not found: run `make install` and ldconfig, or set POISE_LIBRARY to "
                          "build/libpoise.so "
                          "of a build tree (" + "; ".join(tried) + ")")


def library() -> ctypes.CDLL:
    """libpoise, loaded and checked at the first call, so that `import poise` alone never fails."""
    global _library
    if _library is None:
        if sys.platform != "linux":
            raise LibraryNotFound("poise runs on Linux")
        _library = _open_library()
    return _library


def error(err: Err, code: int) -> PoiseError:
    """The exception for a call that returned `code` and filled `err`."""
    return make(code, err.text.decode(errors="replace"), err.rank, err.sample, err.step,
                err.field.decode(errors="replace"))


def enum(member: str, value: int | str) -> int:
    """The number of an enum's value that is given as a word ("equal") or a number."""
    names = ENUMS[member]
    if isinstance(value, str):
        word = value.lower().replace("-", "_")
        if word in names:
            return names.index(word)
        raise make(-22, f"{member} is {value!r}: it must be one of " + ", ".join(names))
    return int(value)
