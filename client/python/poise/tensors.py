# SPDX-License-Identifier: Apache-2.0
"""Element types, and the view of one tensor of a batch.

A view is made from an address and an owner. Every buffer object that it hands out refers to the owner, and the owner
gives the batch's memory back when nothing refers to it any more; memoryview, torch and numpy keep the buffer object
that they were made from. So a tensor that autograd saved, or a slice of a slice, keeps its bytes, and nobody counts
anything.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

from . import _c
from .errors import InvalidInput
from .options import unknown

if TYPE_CHECKING:
    import torch

__all__ = ["TensorView", "dtype_code"]

# struct's (and memoryview's) code of each type; those without one travel as bits of the same size.
FORMATS = ("B", "?", "B", "b", "H", "h", "I", "i", "Q", "q", "e", "H", "f", "d", "B", "B", "", "")
HAS_FORMAT = tuple(name not in ("bfloat16", "float8_e4m3", "float8_e5m2", "complex64",
                                "complex128") for name in _c.DTYPES)
# The array interface's names (numpy); bfloat16 and 8 bit floats have none.
_TYPESTR = ("|u1", "|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "", "<f4", "<f8", "", "",
            "<c8", "<c16")
TORCH_NAMES = ("uint8", "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
               "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128")
_ALIASES = {"float8_e4m3fn": "float8_e4m3", "f8e4m3": "float8_e4m3", "f8e5m2": "float8_e5m2", "half": "float16",
            "float": "float32", "double": "float64", "long": "int64", "int": "int32", "short": "int16", "char": "int8",
            "byte": "uint8", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i8": "int8",
            "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
            "u64": "uint64", "c64": "complex64", "c128": "complex128", "str": "bytes", "string": "bytes"}


def dtype_code(dtype: Any) -> int:
    """The library's number of an element type: "bfloat16", "bf16", a torch.dtype, a numpy dtype, or that number."""
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        if 0 <= dtype < len(_c.DTYPES):
            return dtype
        raise InvalidInput(f"dtype is {dtype}: it must be 0 to {len(_c.DTYPES) - 1}")
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    name = name.removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name not in _c.DTYPES:
        raise unknown("dtype", name, _c.DTYPES)
    return _c.DTYPES.index(name)


@functools.cache
def torch_types() -> tuple[Any, ...]:
    """torch's dtype by the library's number; None where this torch has none. Imports torch."""
    import torch
    return tuple(getattr(torch, name, None) for name in TORCH_NAMES)


@functools.cache
def codes_of_torch() -> dict[Any, int]:
    """The library's number by torch's dtype (uint8 is uint8, not bytes)."""
    return {kind: code for code, kind in enumerate(torch_types()) if kind is not None and code != 0}


def loaded_torch() -> Any:
    """torch if the program has imported it, else None: nothing here imports it unasked."""
    return sys.modules.get("torch")


@functools.cache
def _window(bits: int) -> type[ctypes.Array]:
    return ctypes.c_ubyte * (1 << bits)


def window(address: int, n_bytes: int, owner: Any) -> ctypes.Array:
    """A buffer object at `address` that keeps `owner`. It is as long as the next power of two, as each length of a
    ctypes
    array is a class of its own, expensive to make: cut it to n_bytes before it is handed out."""
    buffer = _window(max(n_bytes - 1, 0).bit_length()).from_address(address)
    buffer.owner = owner
    return buffer


class TensorView:
    """A tensor inside a batch: an assembled field, or one sample's own part of it. Copies nothing.

    Attributes:
        name: the field's.
        dtype: element type, such as "bfloat16".
        shape: of the assembled micro-batch, or of the sample alone.
        strides: in bytes. Parts of padded fields are not contiguous.
        nbytes: product of shape times element size.
    """

    __slots__ = ("name", "code", "shape", "strides", "nbytes", "_address", "_owner")

    def __init__(self, name: str, code: int, shape: tuple[int, ...], strides: tuple[int, ...], nbytes: int,
                 address: int,
                 owner: Any) -> None:
        self.name = name
        self.code = code
        self.shape = shape
        self.strides = strides
        self.nbytes = nbytes
        self._address = address
        self._owner = owner

    @property
    def dtype(self) -> str:
        return _c.DTYPES[self.code]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _c.ITEM_SIZES[self.code]

    @property
    def contiguous(self) -> bool:
        """True if the elements lie one after the other in C order."""
        step = self.itemsize
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent != 1 and stride != step:
                return self.nbytes == 0
            step *= extent
        return True

    def _span(self) -> int:
        """Bytes from the first element to behind the last one."""
        if self.nbytes == 0:
            return 0
        return sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides)) + self.itemsize

    @property
    def memory(self) -> memoryview:
        """The bytes, flat and writable (format "B"), of a contiguous tensor; keeps the batch's memory."""
        if self.nbytes == 0:
            return memoryview(bytearray())
        self._owner.check()
        if not self.contiguous:
            raise InvalidInput(f"{self.name}: a sample's part of a padded field is not contiguous (shape {self.shape}, "
                               f"strides "
                               f"{self.strides}): use torch(), tobytes() or tolist()")
        return memoryview(window(self._address, self.nbytes, self._owner)).cast("B")[:self.nbytes]

    def torch(self) -> torch.Tensor:
        """A torch tensor over the same memory, which keeps it. Imports torch."""
        import torch
        kind = torch_types()[self.code]
        if kind is None:
            raise InvalidInput(f"{self.name}: this torch ({torch.__version__}) has no {self.dtype}")
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=kind)
        self._owner.check()
        span = self._span()
        size = self.itemsize
        flat = torch.frombuffer(window(self._address, span, self._owner), dtype=kind, count=span // size)
        if self.contiguous:
            return flat.view(self.shape)
        return flat.as_strided(self.shape, [stride // size for stride in self.strides])

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """numpy.asarray(view) makes an array over the same memory, which keeps it."""
        if not _TYPESTR[self.code]:
            raise AttributeError(f"{self.name}: {self.dtype} has no numpy type")
        self._owner.check()
        return {"version": 3, "typestr": _TYPESTR[self.code], "shape": self.shape, "strides": self.strides,
                "data": (self._address if self.nbytes else 1, False)}

    def tobytes(self) -> bytes:
        """A copy of the elements in C order."""
        if self.nbytes == 0:
            return b""
        self._owner.check()
        if self.contiguous:
            return ctypes.string_at(self._address, self.nbytes)
        run, rest = self.itemsize, len(self.shape)
        while rest and self.strides[rest - 1] == run:  # the trailing axes that lie together
            rest -= 1
            run *= self.shape[rest]
        outer = [[i * stride for i in range(extent)] for extent, stride in zip(self.shape[:rest], self.strides)]
        return b"".join(ctypes.string_at(self._address + sum(at), run) for at in product(*outer))

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers; bits (integers) where Python has no such type. A copy."""
        data = self.tobytes()
        if self.dtype in ("complex64", "complex128"):
            parts = struct.unpack(f"={len(data) * 2 // self.itemsize}{'f' if self.dtype == 'complex64' else 'd'}", data)
            flat: list[Any] = [complex(*pair) for pair in zip(parts[::2], parts[1::2])]
        else:
            flat = list(struct.unpack(f"={len(data) // self.itemsize}{FORMATS[self.code]}", data))
        return _nest(flat, self.shape)

    def __repr__(self) -> str:
        return f"<poise.TensorView {self.name} {self.dtype} {list(self.shape)}>"


def _nest(flat: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return flat
    step = len(flat) // shape[0] if shape[0] else 0
    return [_nest(flat[i * step:(i + 1) * step], shape[1:]) for i in range(shape[0])]
