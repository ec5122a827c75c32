# SPDX-License-Identifier: Apache-2.0
"""Batches on their way to the accelerator: page-locked memory, a copy on a stream of its own, and when what may be
given up.

A batch that collate_fn made is copied into PyTorch's own page-locked memory, from there to the device on a side stream,
and marked by an event. The trainer's stream waits for the event, not the trainer. The page-locked copy is kept until
the event has come to pass, and the device's memory is not given to others before the trainer's stream is done with it
(record_stream).
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from .errors import InvalidInput, PoiseWarning

__all__ = ["Placer", "casts", "map_tensors"]


def casts(cast: Any) -> dict[Any, Any] | None:
    """The `cast` argument as a dict from torch dtype to torch dtype."""
    if cast is None:
        return None
    import torch

    table = dict(cast) if isinstance(cast, Mapping) else {torch.float32: cast}
    for source, target in table.items():
        if not isinstance(source, torch.dtype) or not isinstance(target, torch.dtype):
            raise InvalidInput(
                f"cast is {cast!r}: give a torch dtype (of what float32 travels as), or a dict from dtype to dtype"
            )
    return table


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same nested value with every tensor replaced. Known: mappings, lists, tuples, named tuples, and mappings
    of a class of their own (a tokenizer's BatchEncoding); what is left stays as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        made = {key: map_tensors(item, function) for key, item in value.items()}
        try:
            return made if type(value) is dict else type(value)(made)  # type: ignore[call-arg]
        except TypeError:
            return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, function) for item in value)
    return value


def _say(text: str) -> None:
    warnings.warn(text, PoiseWarning, stacklevel=5)


class _Copied:
    """A batch on its way to the device."""

    __slots__ = ("batch", "event", "host")

    def __init__(self, batch: Any, event: Any, host: Any) -> None:
        self.batch = batch
        self.event = event  # None: there already
        self.host = host


class Placer:
    """Puts batches where the trainer wants them. place() is called ahead of the trainer, ready() by the trainer."""

    def __init__(self, device: Any = None, pin_memory: bool = False) -> None:
        self.device: Any = None
        self.pin = False
        self._stream: Any = None
        self._flying: deque[_Copied] = deque()
        if device is None and not pin_memory:
            return
        import torch

        there = torch.accelerator.is_available()
        if pin_memory and not there:
            _say("pin_memory=True: there is no accelerator, so batches stay in ordinary memory")
        self.pin = pin_memory and there
        if device is not None:
            self._use(torch.device(device), there)

    def _use(self, device: Any, there: bool) -> None:
        if device.type == "cpu":
            _say("device='cpu': batches are in the host's memory already, so nothing is copied")
            return
        if device.type != "meta" and not there:
            _say(f"device={str(device)!r}: there is no accelerator, so batches stay in the host's memory")
            return
        self.device = device
        self.pin = device.type != "meta"

    def _side_stream(self, torch: Any) -> Any:
        """Made by the thread that copies, as its device must be the current one there."""
        if self._stream is None and self.device.type != "meta":
            torch.accelerator.set_device_index(
                self.device.index if self.device.index is not None else torch.accelerator.current_device_index()
            )
            self._stream = torch.Stream(self.device)
        return self._stream

    def place(self, batch: Any) -> Any:
        """Starts the copy. Returns what ready() takes."""
        if self.pin:
            batch = map_tensors(batch, lambda tensor: tensor if tensor.is_pinned() else tensor.pin_memory())
        if self.device is None:
            return batch
        torch = sys.modules["torch"]
        while self._flying and self._flying[0].event.query():
            self._flying.popleft().host = None
        stream = self._side_stream(torch)
        if stream is None:
            return _Copied(map_tensors(batch, lambda tensor: tensor.to(self.device)), None, None)
        with stream:
            there = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))
            event = stream.record_event()
        copied = _Copied(there, event, batch)
        self._flying.append(copied)
        return copied

    def ready(self, placed: Any) -> Any:
        """The batch, to be used on the current stream of the calling thread."""
        if not isinstance(placed, _Copied):
            return placed
        if placed.event is not None:
            current = sys.modules["torch"].accelerator.current_stream(self.device)
            current.wait_event(placed.event)
            map_tensors(placed.batch, lambda tensor: (tensor.record_stream(current), tensor)[1])
        return placed.batch
