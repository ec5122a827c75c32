# SPDX-License-Identifier: Apache-2.0
"""What a rank submits: fields, samples, and how Python objects become the arrays that poise_submit() reads.

All samples of a step are packed into one block of memory by struct.pack_into: a ctypes object a sample would cost more
than the library itself. The block and what it points to live until the call returns, which copies all of it.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _c
from .errors import InvalidInput, make
from .options import put, unknown
from .tensors import FORMATS, HAS_FORMAT, codes_of_torch, dtype_code, loaded_torch

__all__ = ["Field", "Sample"]


@dataclass(frozen=True)
class Field:
    """One named part of a sample, and how a micro-batch is made of it.

    Attributes:
        name: unique in the group; ranks are merged by it.
        dtype: "bfloat16", "int64", "bytes" ... or a torch.dtype.
        shape: of one sample, 0 to 7 axes; -1 (or None) is ragged.
        assembly: "concat" along `axis`; "padded": stacked at a new `axis`, ragged axes padded; "opaque": one after the
            other, found through Batch.value().
        axis: see assembly.
        axis_name: padded: names of axes (one for all ragged ones, or one an axis, None: the field's own); axes of one
            name are padded alike.
        pad_side: "right" or "left".
        pad_value: what padding is made of: a number, True, or None for zero bits.
        pad_scope: pad to the "micro_batch"'s maximum, to the whole "step"'s, or "fixed" to `pad_to`.
        pad_multiple: the padded extent is rounded up to a multiple of it.
        rows_of: a grid field: this field's first axis must have as many rows as the sum over the grid's rows of the
            product of their columns.
        divisor: by column of the grid: what must divide it (spatial merge); rows count after the division.
    """
    name: str
    dtype: Any
    shape: Sequence[int | None]
    assembly: str = "concat"
    axis: int = 0
    axis_name: str | Sequence[str | None] | None = None
    pad_side: str = "right"
    pad_value: Any = None
    pad_scope: str = "micro_batch"
    pad_multiple: int = 0
    pad_to: int = 0
    rows_of: str | None = None
    divisor: Sequence[int] = ()


@dataclass
class Sample:
    """One training example.

    Attributes:
        values: by field name, what the sample has of it: a torch tensor on the CPU, anything with the buffer protocol
            (bytes, memoryview, array, numpy), str, a number, nested lists of numbers; bare bytes take the field's
            shape. A field that is missing (or None) is empty.
        length: tokens (patches) by phase, in the order of the cost's phases; a mapping by the phase's name; or one int
            where there is one phase.
        attention: by phase, the sum of squared full-attention segments; None: length squared.
        loss_tokens: what the sample adds to the loss's divisor.
        tag: 64 bits of the user's own, delivered with the sample.
        micro_batch: the arrival micro-batch; None: consecutive equal pieces.
        unit: samples of one submission with the same unit (not 0) move as one, in order.
        unit_layout: "together" or "transposed".
        nbytes: plan-only groups: the bytes that the trainer moves with it.
    """
    values: Mapping[str, Any] = field(default_factory=dict)
    length: int | Sequence[int] | Mapping[str, int] = ()
    attention: int | Sequence[int] | Mapping[str, int] | None = None
    loss_tokens: int = 0
    tag: int = 0
    micro_batch: int | None = None
    unit: int = 0
    unit_layout: str | int = "together"
    nbytes: int = 0


# ------------------------------------------------------------------------------------------------------- declarations


def pad_bits(code: int, value: Any, what: str) -> int:
    """The bits of one element of a type, as the pad value crosses the ABI (native byte order, up to 8 bytes)."""
    size = _c.ITEM_SIZES[code]
    if value is None or (value == 0 and not str(value).startswith("-")):
        return 0
    if size > 8:
        raise InvalidInput(f"{what}: a pad value of {_c.DTYPES[code]} must be 0")
    try:
        if _c.DTYPES[code] == "bfloat16":
            return bfloat16_bits(float(value))
        if _c.DTYPES[code] == "complex64":
            return int.from_bytes(struct.pack("=2f", complex(value).real, complex(value).imag), "little")
        if not HAS_FORMAT[code]:
            raise InvalidInput(f"{what}: a pad value of {_c.DTYPES[code]} must be 0")
        return int.from_bytes(struct.pack("<" + FORMATS[code], value), "little")
    except (struct.error, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"{what}: the pad value {value!r} is not a {_c.DTYPES[code]}: {error}") from None


def bfloat16_bits(value: float) -> int:
    """Nearest bfloat16, ties to even, as 16 bits."""
    if value != value:
        return 0x7FC0
    bits = int.from_bytes(struct.pack("<f", value), "little")
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _axis_names(f: Field) -> list[str | None]:
    if f.axis_name is None:
        return []
    if isinstance(f.axis_name, str):
        return [f.axis_name if extent is None or extent < 0 else None for extent in f.shape]
    names = list(f.axis_name)
    if len(names) > len(f.shape):
        raise InvalidInput(f"field {f.name}: axis_name has {len(names)} names for {len(f.shape)} axes", field=f.name)
    return names


def _fill(to: _c.Field, f: Field) -> None:
    what = f"field {f.name}"
    shape = [-1 if extent is None else extent for extent in f.shape]
    if len(shape) > _c.MAX_DIMS or len(f.divisor) > _c.MAX_DIMS:
        raise InvalidInput(f"{what}: shape {shape} and divisor {list(f.divisor)} have at most {_c.MAX_DIMS} items",
                           field=f.name)
    to.name = f.name.encode()
    to.dtype = dtype_code(f.dtype)
    to.n_dims = len(shape)
    to.shape[:len(shape)] = shape
    for member in ("assembly", "pad_side", "pad_scope"):
        setattr(to, member, _c.enum(member, getattr(f, member)))
    for member in ("axis", "pad_multiple", "pad_to"):
        put(to, member, getattr(f, member), f"{what}: {member}")
    for i, name in enumerate(_axis_names(f)):
        to.axis_name[i] = name.encode() if name else None
    to.pad_bits = pad_bits(to.dtype, f.pad_value, what)
    to.rows_of = f.rows_of.encode() if f.rows_of else None
    to.n_divisors = len(f.divisor)
    to.divisor[:len(f.divisor)] = list(f.divisor)


class Declared:
    """What packing needs to know of a declared field."""

    __slots__ = ("name", "c_name", "name_address", "code", "itemsize", "n_dims", "shape", "n_ragged", "padding")

    def __init__(self, f: Field) -> None:
        self.name = f.name
        self.c_name = ctypes.create_string_buffer(f.name.encode())
        self.name_address = ctypes.addressof(self.c_name)
        self.code = dtype_code(f.dtype)
        self.itemsize = _c.ITEM_SIZES[self.code]
        self.shape = tuple(-1 if extent is None else extent for extent in f.shape)
        self.n_dims = len(self.shape)
        self.n_ragged = sum(extent < 0 for extent in self.shape)
        self.padding = (0,) * (_c.MAX_DIMS - self.n_dims)


def field_array(fields: Sequence[Field]) -> ctypes.Array:
    """Fields as poise_declare() reads them."""
    made = (_c.Field * max(1, len(fields)))()
    for to, f in zip(made, fields):
        _fill(to, f)
    return made


# ------------------------------------------------------------------------------------------------------------- values

_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.c_void_p]
_release_buffer.restype = None
_bytes_address = ctypes.pythonapi.PyBytes_AsString
_bytes_address.argtypes = [ctypes.py_object]
_bytes_address.restype = ctypes.c_void_p
_ND_FORMAT = 0x0008 | 0x0004  # PyBUF_ND | PyBUF_FORMAT: C-contiguous, with shape and type

_KIND = {"?": "b", "c": "B", "B": "u", "H": "u", "I": "u", "L": "u", "Q": "u", "N": "u", "b": "i", "h": "i", "i": "i",
         "l": "i", "q": "i", "n": "i", "e": "f", "f": "f", "d": "f", "Zf": "c", "Zd": "c"}
_KIND_OF_DTYPE = ("B", "b", "u", "i", "u", "i", "u", "i", "u", "i", "f", "bits", "f", "f", "bits", "bits", "c", "c")


def _wrong(info: Declared, text: str) -> InvalidInput:
    return InvalidInput(f"field {info.name}: {text}", field=info.name)


def _shape_of_bytes(info: Declared, n_bytes: int) -> tuple[int, ...]:
    """Of bytes that carry no shape: the field's, if at most one axis is ragged."""
    count, odd = divmod(n_bytes, info.itemsize)
    fixed = 1
    for extent in info.shape:
        fixed *= extent if extent >= 0 else 1
    if odd or info.n_ragged > 1 or (count % fixed if fixed else count) or (info.n_ragged == 0 and count != fixed):
        raise _wrong(info, f"{n_bytes} bytes without a shape do not make {_c.DTYPES[info.code]} {list(info.shape)}")
    return tuple(extent if extent >= 0 else (count // fixed if fixed else 0) for extent in info.shape)


def _torch_value(info: Declared, tensor: Any, torch: Any, keep: list[Any]) -> tuple[int, tuple[int, ...]]:
    if tensor.device.type != "cpu":
        raise _wrong(info, f"the tensor is on {tensor.device}: samples are exchanged in the memory of the host, so "
                           "balance them "
                           "before they are moved to the accelerator")
    if tensor.layout != torch.strided:
        raise _wrong(info, f"the tensor's layout is {tensor.layout}: give a dense one")
    code = codes_of_torch().get(tensor.dtype)
    if code != info.code and not (info.code == 0 and code == 2):
        raise _wrong(info, f"the tensor is {tensor.dtype}, the field was declared {_c.DTYPES[info.code]}")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    keep.append(tensor)
    return tensor.data_ptr(), tuple(tensor.shape)


def _flatten(info: Declared, value: Any) -> tuple[list[Any], tuple[int, ...]]:
    if not isinstance(value, (list, tuple)):
        return [value], ()
    parts = [_flatten(info, item) for item in value]
    shapes = {shape for _, shape in parts}
    if len(shapes) > 1:
        raise _wrong(info, f"the nested lists are uneven: {sorted(shapes)}")
    inner = shapes.pop() if shapes else info.shape[1:]
    return [item for flat, _ in parts for item in flat], (len(value), *(max(extent, 0) for extent in inner))


def _number_value(info: Declared, value: Any, keep: list[Any]) -> tuple[int, tuple[int, ...]]:
    flat, shape = _flatten(info, value)
    try:
        if _c.DTYPES[info.code] == "bfloat16":
            data = struct.pack(f"={len(flat)}H", *[bfloat16_bits(float(item)) for item in flat])
        elif _c.DTYPES[info.code].startswith("complex"):
            parts = [part for item in flat for part in (complex(item).real, complex(item).imag)]
            data = struct.pack(f"={len(parts)}{'f' if info.itemsize == 8 else 'd'}", *parts)
        else:
            data = struct.pack(f"={len(flat)}{FORMATS[info.code]}", *flat)
    except (struct.error, TypeError, ValueError, OverflowError) as error:
        raise _wrong(info, f"{value!r:.60} does not make {_c.DTYPES[info.code]}: {error}") from None
    keep.append(data)
    return _bytes_address(data), shape


def _buffer_value(info: Declared, value: Any, keep: list[Any], buffers: list[Any]) -> tuple[int, tuple[int, ...]]:
    view = _c.PyBuffer()
    try:
        _get_buffer(value, ctypes.byref(view), _ND_FORMAT)
    except TypeError:
        raise _wrong(info,
                     f"a {type(value).__name__} has no buffer: give a tensor, bytes, numbers or a string") from None
    except BufferError:
        data = memoryview(value).tobytes()  # not contiguous
        shaped = memoryview(value)
        keep.append(data)
        return _typed(info, _bytes_address(data), shaped.format, shaped.itemsize, shaped.shape, shaped.nbytes)
    buffers.append(view)
    shape = tuple(view.shape[:view.ndim])
    return _typed(info, view.buf or 0, (view.format or b"B").decode(), view.itemsize, shape, view.len)


def _typed(info: Declared, address: int, code: str, itemsize: int, shape: tuple[int, ...],
           n_bytes: int) -> tuple[int, tuple[int, ...]]:
    kind = _KIND.get(code.lstrip("@=<"))
    wanted = _KIND_OF_DTYPE[info.code]
    if itemsize == 1 and kind in ("u", "B") and (info.itemsize > 1 or len(shape) != info.n_dims):
        return address, _shape_of_bytes(info, n_bytes)  # bare bytes
    if wanted == "B":
        return address, (n_bytes,) if info.n_dims == 1 else shape
    fits = kind == wanted or (wanted == "bits" and kind == "u") or (itemsize == 1 and kind in ("u", "B"))
    if itemsize != info.itemsize or not fits:
        raise _wrong(info, f"the buffer's elements are {code!r} of {itemsize} bytes, the field was declared "
                           f"{_c.DTYPES[info.code]}")
    return address, shape


def value_of(info: Declared, value: Any, keep: list[Any], buffers: list[Any]) -> tuple[int, tuple[int, ...]]:
    """Address and shape of one value. `keep` and `buffers` take what must stay until the submission is over."""
    if type(value) is bytes:
        keep.append(value)
        plain = info.n_dims == 1 == info.itemsize
        return _bytes_address(value), (len(value),) if plain else _shape_of_bytes(info, len(value))
    torch = loaded_torch()
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_value(info, value, torch, keep)
    if isinstance(value, str):
        return value_of(info, value.encode(), keep, buffers)
    if isinstance(value, (int, float, complex, list, tuple)):
        return _number_value(info, value, keep)
    return _buffer_value(info, value, keep, buffers)


# ------------------------------------------------------------------------------------------------------------ packing

_SAMPLE = _c.layout(_c.Sample)
_VALUE = _c.layout(_c.Value)
_TOGETHER = ("together", 0)


class Packed:
    """Samples as poise_submit() reads them. `address` is valid until release()."""

    __slots__ = ("address", "n", "_keep", "_buffers")

    def __init__(self, samples: Sequence[Sample], phases: Sequence[str], fields: Mapping[str, Declared]) -> None:
        self._keep: list[Any] = []
        self._buffers: list[Any] = []
        self.n = len(samples)
        try:
            self._pack(samples, phases, fields)
        except BaseException:
            self.release()
            raise

    def _pack(self, samples: Sequence[Sample], phases: Sequence[str], fields: Mapping[str, Declared]) -> None:
        n_phases = len(phases)
        n_values = sum([len(s.values) for s in samples])
        values_at = self.n * _SAMPLE.size
        block = bytearray(values_at + n_values * _VALUE.size + 1)
        self.address = base = ctypes.addressof(ctypes.c_char.from_buffer(block))
        lengths = self._numbers("q", [s.length for s in samples], phases, "length")
        attention = self._attention(samples, phases)
        self._keep.append(block)
        i = at = 0
        for s in samples:
            first = values_at
            try:
                for name, value in s.values.items():
                    if value is not None:
                        values_at = self._put_value(block, values_at, name, value, fields)
                layout = s.unit_layout
                _SAMPLE.pack_into(block, at, s.tag, lengths + 8 * n_phases * i,
                                  attention and attention + 8 * n_phases * i,
                                  s.loss_tokens, _c.DEFAULT_MICRO_BATCH if s.micro_batch is None else s.micro_batch,
                                  s.unit,
                                  0 if layout in _TOGETHER else _c.enum("unit_layout", layout),
                                  (values_at - first) // _VALUE.size, base + first, _VALUE.size, s.nbytes)
            except struct.error as error:
                raise make(-errno.EINVAL, f"sample {i}: tag {s.tag!r}, loss_tokens {s.loss_tokens!r}, micro_batch "
                           f"{s.micro_batch!r}, unit {s.unit!r} and nbytes {s.nbytes!r} must be integers of at most 64 "
                           f"bits: "
                           f"{error}", sample=i) from None
            except InvalidInput as error:
                raise make(error.code, f"sample {i}: {error.text}", sample=i, field=error.field) from None
            i += 1
            at += _SAMPLE.size

    def _put_value(self, block: bytearray, at: int, name: str, value: Any, fields: Mapping[str, Declared]) -> int:
        info = fields.get(name)
        if info is None:
            error = unknown("field", name, list(fields))
            raise InvalidInput(error.text, field=name)
        address, shape = value_of(info, value, self._keep, self._buffers)
        n_dims = len(shape)
        if n_dims == info.n_dims:
            _VALUE.pack_into(block, at, info.name_address, address, n_dims, 0, *shape, *info.padding)
        elif n_dims <= _c.MAX_DIMS:
            _VALUE.pack_into(block, at, info.name_address, address, n_dims, 0, *shape, *(0,) * (_c.MAX_DIMS - n_dims))
        else:
            raise _wrong(info, f"{n_dims} axes, the field was declared with {info.n_dims}")
        return at + _VALUE.size

    def _numbers(self, code: str, rows: list[Any], phases: Sequence[str], what: str) -> int:
        """One array of n x phases numbers; its address."""
        n_phases = len(phases)
        try:
            numbers = array(code, [number for row in rows for number in row])
            if any([len(row) != n_phases or isinstance(row, Mapping) for row in rows]):
                raise TypeError
        except (TypeError, OverflowError):
            numbers = array(code, [number for i, row in enumerate(rows) for number in _by_phase(code, row, phases, what,
                                                                                                i)])
        self._keep.append(numbers)
        return numbers.buffer_info()[0]

    def _attention(self, samples: Sequence[Sample], phases: Sequence[str]) -> int:
        given = [s.attention for s in samples]
        if all([row is None for row in given]):
            return 0
        for i, row in enumerate(given):
            if row is None:
                given[i] = [number * number for number in _by_phase("q", samples[i].length, phases, "length", i)]
        return self._numbers("Q", given, phases, "attention")

    def release(self) -> None:
        """Gives the borrowed buffers back."""
        for view in self._buffers:
            _release_buffer(ctypes.byref(view))
        self._buffers.clear()
        self._keep.clear()


def _by_phase(code: str, row: Any, phases: Sequence[str], what: str, i: int) -> list[int]:
    """The numbers of one sample, in the order of the phases; slow, but says what is wrong."""
    if isinstance(row, Mapping):
        for name in row:
            if name not in phases:
                raise make(-errno.EINVAL, f"sample {i}: " + unknown(f"{what}: phase", name, phases).text, sample=i)
        row = [row.get(name, 0) for name in phases]
    elif not hasattr(row, "__len__"):
        row = [row]
    if len(row) != len(phases):
        raise make(-errno.EINVAL, f"sample {i}: {what} {row!r:.60} has {len(row)} numbers for {len(phases)} phases "
                   f"({', '.join(phases)})", sample=i)
    low, high = (-2**63, 2**63 - 1) if code == "q" else (0, 2**64 - 1)
    for number in row:
        if not hasattr(number, "__index__") or not low <= number.__index__() <= high:
            raise make(-errno.EINVAL, f"sample {i}: {what} {number!r} is not an integer from 0 to {high}", sample=i)
    return [number.__index__() for number in row]
