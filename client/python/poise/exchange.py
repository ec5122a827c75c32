# SPDX-License-Identifier: Apache-2.0
"""Samples as bytes: whatever a dataset returns becomes one opaque field of a sample, and the same object again
elsewhere.

A sample is pickled with protocol 5. What is large stays out of the pickle: memory of tensors and numpy arrays is
written once, straight from where it is, and comes back as a view of the received bytes, so a sample is copied once on
its way into memory that poise reads and not at all on its way out (`bytes`, strings and PIL images, which own their
memory, are copied out). PyTorch's own pickling of a tensor copies it several times; tensors are therefore taken apart
here.

Unpickling runs code that the bytes name. The bytes come from processes of the same job only: on one node the kernel
says whose they are (one uid), between nodes the connection's key does. So balance() refuses to unpickle what came over
a plain-text connection from another node.

Layout of a sample: a header <magic, number of buffers, bytes of the pickle>, the buffers' sizes, the pickle, the
buffers; the pickle and every buffer begin at a multiple of 16, so that any dtype can be read in place.
"""

from __future__ import annotations

import io
import math
import operator
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from .errors import PoiseError
from .lengths import Measure
from .tensors import window

__all__ = ["BadSample", "Encoded", "Encoder", "EncodedBatch", "decode", "describe", "encode", "tensor_memory"]

MAGIC = b"poi1"
HEADER = struct.Struct("<4sIQ")
ALIGN = 16  # the largest element (complex128), and what libpoise aligns opaque samples to
IN_BAND = 512  # a smaller buffer costs less inside the pickle than beside it
MAX_BUFFERS = 1 << 20
LENGTH_LIMIT = 1 << 63


class BadSample(PoiseError, ValueError):
    """A sample that cannot take part: its length is no number, it cannot be pickled, its tensors are on an
    accelerator."""


# -------------------------------------------------------------------------------------------------------------- tensors


def tensor_memory(tensor: Any) -> memoryview:
    """The bytes of a contiguous CPU tensor, as a writable view that keeps it (works without numpy)."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    return memoryview(window(tensor.data_ptr(), size, tensor)).cast("B")[:size]


def rebuild_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], order: tuple[int, ...] | None) -> Any:
    """The inverse of _reduce_tensor: a view of `buffer`; `order` is the permutation that made its memory contiguous."""
    import torch

    if math.prod(shape) == 0:
        flat = torch.empty(0, dtype=dtype)
    else:
        if memoryview(buffer).readonly:
            buffer = bytearray(buffer)
        flat = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype)
    tensor = flat.view(shape)
    if order is not None:
        tensor = tensor.permute(sorted(range(len(order)), key=order.__getitem__))
    return tensor


def _dense_order(tensor: Any) -> tuple[int, ...] | None:
    """The permutation of axes that makes the tensor contiguous (channels last has one), None where there is none."""
    stride = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda axis: -stride[axis]))
    return order if tensor.permute(order).is_contiguous() else None


def _reduce_tensor(tensor: Any, torch: Any, cast: dict[Any, Any] | None) -> Any:
    if tensor.device.type not in ("cpu", "meta"):
        raise BadSample(
            f"a sample has a tensor on {tensor.device}: put balance() before the batch is moved "
            "(for batch in poise.balance(loader, ...): batch = batch.to(device)), or give balance(device=...)"
        )
    plain = (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.requires_grad
    )
    if not plain:
        return NotImplemented  # rare kinds travel as PyTorch pickles them
    if cast and tensor.dtype in cast:
        tensor = tensor.to(cast[tensor.dtype])
    order = None
    if not tensor.is_contiguous():
        order = _dense_order(tensor)
        tensor = tensor.contiguous() if order is None else tensor.permute(order)
    memory = pickle.PickleBuffer(tensor_memory(tensor))
    return rebuild_tensor, (memory, tensor.dtype, tuple(tensor.shape), order)


# ------------------------------------------------------------------------------------------------------------- pickling


class _Chunks(io.RawIOBase):
    """Keeps what the pickler writes as it comes: large bytes objects by reference, without a copy."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.size = 0

    def write(self, data: Any) -> int:
        self.chunks.append(data)
        self.size += len(data)
        return len(data)


class _Pickler(pickle.Pickler):
    def __init__(self, chunks: _Chunks, buffers: list[memoryview], cast: dict[Any, Any] | None) -> None:
        def keep(buffer: pickle.PickleBuffer) -> bool:
            # No method: a pickler that refers to itself is left to the garbage collector, with all that it pickled, and
            # CPython 3.11 crashes when it collects views of buffers in a cycle.
            raw = buffer.raw()
            if raw.nbytes < IN_BAND:
                return True
            buffers.append(raw)
            return False

        super().__init__(chunks, protocol=5, buffer_callback=keep)
        self.cast = cast
        self.torch = sys.modules.get("torch")  # no sample has a tensor where nobody has imported it

    def reducer_override(self, obj: Any) -> Any:
        if self.torch is not None and isinstance(obj, self.torch.Tensor):
            return _reduce_tensor(obj, self.torch, self.cast)
        return NotImplemented


class Encoded:
    """A sample that is ready to be written: its parts are still where the dataset put them."""

    __slots__ = ("parts", "nbytes")

    def __init__(self, parts: list[tuple[int, Any]], nbytes: int) -> None:
        self.parts = parts  # (offset, bytes-like)
        self.nbytes = nbytes

    def write(self, memory: memoryview, offset: int = 0) -> None:
        """Copies the sample to `memory[offset:offset + nbytes]`. Padding between parts is left as it is."""
        for at, part in self.parts:
            begin = offset + at
            memory[begin : begin + len(part)] = part


def _aligned(n: int) -> int:
    return (n + ALIGN - 1) & ~(ALIGN - 1)


def encode(sample: Any, cast: dict[Any, Any] | None = None) -> Encoded:
    """Takes a sample apart without copying its large parts. `cast` maps dtypes of tensors to the ones to send."""
    chunks = _Chunks()
    buffers: list[memoryview] = []
    _Pickler(chunks, buffers, cast).dump(sample)
    if len(buffers) > MAX_BUFFERS:
        raise BadSample(
            f"a sample has {len(buffers)} arrays, at most {MAX_BUFFERS} can travel: stack them in the dataset"
        )
    head = HEADER.pack(MAGIC, len(buffers), chunks.size) + struct.pack(
        f"<{len(buffers)}Q", *(b.nbytes for b in buffers)
    )
    parts: list[tuple[int, Any]] = [(0, head)]
    at = _aligned(len(head))
    for chunk in chunks.chunks:
        parts.append((at, chunk))
        at += len(chunk)
    for buffer in buffers:
        at = _aligned(at)
        parts.append((at, buffer))
        at += buffer.nbytes
    return Encoded(parts, at)


def decode(memory: Any) -> Any:
    """The sample again. Tensors and arrays are views of `memory`, which they keep, and writable if it is."""
    view = memoryview(memory).cast("B")
    if view.nbytes < HEADER.size:
        raise PoiseError(f"a sample of {view.nbytes} bytes is too short: not made by this package")
    magic, n_buffers, n_pickle = HEADER.unpack_from(view)
    at = _aligned(HEADER.size + 8 * n_buffers)
    if magic != MAGIC or n_buffers > MAX_BUFFERS or at + n_pickle > view.nbytes:
        raise PoiseError(
            "a received sample was not made by this version of the package: install one version on all ranks"
        )
    sizes = struct.unpack_from(f"<{n_buffers}Q", view, HEADER.size)
    stream = view[at : at + n_pickle]
    at += n_pickle
    buffers = []
    for size in sizes:
        at = _aligned(at)
        buffers.append(view[at : at + size])
        at += size
    if at > view.nbytes:
        raise PoiseError(f"a received sample has {view.nbytes} bytes, its table says {at}")
    return pickle.loads(stream, buffers=buffers)


# ------------------------------------------------------------------------------------------------------------ measuring


def whole(value: Any, what: str) -> int:
    """A length as poise counts them: whole and not negative. Fractions are rounded up (lengths are often quotients)."""
    try:
        number = operator.index(value)
    except TypeError:
        as_float = float(value)
        if not math.isfinite(as_float):
            raise BadSample(f"{what} is {as_float}: a length is a finite number") from None
        number = math.ceil(as_float)
    if number < 0:
        raise BadSample(f"{what} is {number}: a length cannot be negative")
    if number >= LENGTH_LIMIT:
        raise BadSample(f"{what} is {number}: a length must be below 2^63")
    return number


def _by_phase(value: Any, phases: Sequence[str], what: str, filled: bool) -> tuple[int, ...]:
    if isinstance(value, dict):
        unknown = [] if filled else [name for name in value if name not in phases]
        if unknown:
            raise BadSample(f"{what} names phase {unknown[0]!r}; the phases of `cost` are {', '.join(phases)}")
        return tuple(whole(value.get(name, 0), f"{what} of phase {name}") for name in phases)
    if not isinstance(value, (tuple, list)):
        value = (value,)
    if len(value) != len(phases):
        raise BadSample(
            f"{what} has {len(value)} numbers; `cost` has the phases {', '.join(phases)}: return one for each"
        )
    return tuple(whole(v, f"{what} of phase {name}") for name, v in zip(phases, value))


def measured(
    value: Any, phases: Sequence[str], loss_tokens: Any
) -> tuple[tuple[int, ...], tuple[int, ...] | None, int]:
    """What a `lengths` function returned -> (lengths by phase, attention by phase or None, loss tokens), checked."""
    attention, tokens, filled = None, loss_tokens, False
    if isinstance(value, Measure):
        filled = value.preset
        attention, tokens = value.attention, value.loss_tokens if loss_tokens is None else loss_tokens
        value = value.length
        if filled and tuple(phases) == ("length",) and isinstance(value, dict):
            value, attention = value.get("llm", 0), None  # cost by length alone: the decoder's
    length = _by_phase(value, phases, "length", filled)
    if attention is not None:
        attention = _by_phase(attention, phases, "attention", filled)
    return length, attention, 1 if tokens is None else whole(tokens, "loss_tokens")


class EncodedBatch:
    """A loader's batch on its way: one block of bytes, and of each sample where it begins, ends and what it costs."""

    __slots__ = ("memory", "spans", "measures", "tags", "error", "cause")

    def __init__(
        self,
        memory: Any,
        spans: list[tuple[int, int]],
        measures: Any,
        tags: list[int],
        error: tuple[int, str] | None = None,
        cause: BaseException | None = None,
    ) -> None:
        self.memory = memory  # bytearray, or a uint8 tensor in memory shared with a worker process
        self.spans = spans  # [n] (offset, nbytes)
        self.measures = measures  # [n] as measured(); None: not yet
        self.tags = tags  # [n], or empty: the user gave no function
        self.error = error  # (sample, text) of a bad one: nothing else is set
        self.cause = cause  # the exception, where it did not cross a process

    def __len__(self) -> int:
        return len(self.spans)

    def view(self) -> memoryview:
        return memoryview(self.memory) if isinstance(self.memory, bytearray) else tensor_memory(self.memory)

    def __reduce__(self) -> Any:  # the cause stays: many exceptions cannot be pickled
        return EncodedBatch, (self.memory, self.spans, self.measures, self.tags, self.error)


def _block(nbytes: int) -> tuple[Any, memoryview]:
    """Memory for a batch. In a loader's worker process it is shared, so that the way to the trainer copies nothing."""
    torch, data = sys.modules.get("torch"), sys.modules.get("torch.utils.data")
    if nbytes and torch is not None and data is not None and data.get_worker_info() is not None:
        tensor = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(nbytes))
        return tensor, tensor_memory(tensor)
    block = bytearray(nbytes)
    return block, memoryview(block)


class Encoder:
    """Stands where a loader's collate_fn was: measures the samples of a batch and makes bytes of them.

    It runs in the loader's worker processes where there are any, so that the trainer's process does neither. What is
    wrong with a sample does not raise there: it comes back in `error`, to be told to all ranks.
    """

    def __init__(
        self,
        lengths: Callable[[Any], Any] | None,
        phases: Sequence[str],
        loss_tokens: Callable[[Any], Any] | None = None,
        tag: Callable[[Any], int] | None = None,
        cast: dict[Any, Any] | None = None,
    ) -> None:
        self.lengths = lengths
        self.phases = tuple(phases)
        self.loss_tokens = loss_tokens
        self.tag = tag
        self.cast = cast

    def _measure(self, sample: Any, batch: EncodedBatch) -> None:
        assert self.lengths is not None
        tokens = None if self.loss_tokens is None else self.loss_tokens(sample)
        batch.measures.append(measured(self.lengths(sample), self.phases, tokens))
        if self.tag is not None:
            batch.tags.append(operator.index(self.tag(sample)) & 0xFFFFFFFFFFFFFFFF)

    def measure(self, batch: EncodedBatch) -> None:
        """Measures a batch that was encoded where the functions could not go, from its bytes."""
        batch.measures, batch.tags = [], []
        view = batch.view()
        for i, (offset, nbytes) in enumerate(batch.spans):
            try:
                self._measure(decode(view[offset : offset + nbytes]), batch)
            except Exception as cause:
                batch.error, batch.cause = (i, describe(cause)), cause
                return

    def __call__(self, samples: Any) -> EncodedBatch:
        if not isinstance(samples, (list, tuple)):
            raise TypeError(
                f"balance() needs lists of samples, and got {type(samples).__name__}: give the loader a batch_size, "
                "or let the iterable yield lists"
            )
        batch = EncodedBatch(None, [], None if self.lengths is None else [], [])
        encoded = []
        for i, sample in enumerate(samples):
            try:
                if self.lengths is not None:
                    self._measure(sample, batch)
                encoded.append(encode(sample, self.cast))
            except Exception as cause:
                return EncodedBatch(None, [], [], [], (i, describe(cause)), cause)
        self._gather(encoded, batch)
        return batch

    def _gather(self, encoded: list[Encoded], batch: EncodedBatch) -> None:
        at = 0
        for sample in encoded:
            batch.spans.append((at, sample.nbytes))
            at = _aligned(at + sample.nbytes)
        batch.memory, memory = _block(at)
        for (offset, _), sample in zip(batch.spans, encoded):
            sample.write(memory, offset)


def describe(error: BaseException) -> str:
    """One line of text, with the place in the user's code where it was raised."""
    text = str(error)
    if "Original Traceback" in text:  # a DataLoader's: the worker's own last line says it
        return text.rstrip().rsplit("\n", 1)[-1]
    text = " ".join(text.split()) or type(error).__name__
    if isinstance(error, BadSample):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"
