# SPDX-License-Identifier: Apache-2.0
"""Exceptions. Each carries the library's own text, which names the thing, the value and what to do."""

from __future__ import annotations

import errno
import os

__all__ = ["PoiseError", "EndOfData", "StepError", "Timeout", "Aborted", "Interrupted", "UseAfterFork",
           "VersionMismatch",
           "InvalidInput", "OutOfMemory", "LibraryNotFound", "PoiseWarning"]

NONE = 0xFFFFFFFF  # POISE_NONE: does not apply


class PoiseError(Exception):
    """What went wrong.

    Attributes:
        code: the negative errno that the library returned.
        errno: the same, positive, as in OSError.
        rank: whose input it was, or None.
        sample: index in that rank's submission, or None.
        step: the step it is about; of Aborted the last one that was delivered.
        field: name of the field, or "".
    """

    def __init__(self, text: str, code: int = -errno.EINVAL, rank: int | None = None, sample: int | None = None,
                 step: int = 0, field: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.rank = rank
        self.sample = sample
        self.step = step
        self.field = field

    @property
    def errno(self) -> int:  # type: ignore[override]
        return -self.code

    def __str__(self) -> str:
        return self.text

    def __reduce__(self):
        return type(self), (self.text, self.code, self.rank, self.sample, self.step, self.field)


class EndOfData(PoiseError):
    """The data has ended on the ranks, as the option `end` says. A `for` over a group ends instead."""


class StepError(PoiseError):
    """The outcome of one step is an error, the same on every rank. The next step goes on."""


class Timeout(PoiseError, TimeoutError):
    """Nothing happened in time; the text says what was waited for."""


class Aborted(PoiseError):
    """The epoch is over (a rank died, a node fell silent): only release and close are left."""


class Interrupted(PoiseError):
    """Group.interrupt() was called."""


class UseAfterFork(PoiseError):
    """This process is a child of the one that opened the group: open one of its own after the fork."""


class InvalidInput(PoiseError, ValueError):
    """A value, a sample or an option is not as it must be. Nothing has happened; Group.fail() tells the other ranks."""


class OutOfMemory(PoiseError, MemoryError):
    """Memory is short, or held batches fill it: the text says what holds it, what is needed and what is there."""


class VersionMismatch(PoiseError, ImportError):
    """Package and library are of different versions."""


class LibraryNotFound(PoiseError, ImportError):
    """libpoise is nowhere: the text lists where it was looked for."""


class PoiseWarning(UserWarning):
    """A notice of the library, such as a slow peer, an oversize sample, ranks that submit the same samples."""


_CLASSES = {
    -errno.ENODATA: EndOfData,
    -errno.EBADMSG: StepError,
    -errno.ETIMEDOUT: Timeout,
    -errno.ESHUTDOWN: Aborted,
    -errno.EINTR: Interrupted,
    -errno.EPERM: UseAfterFork,
    -errno.EINVAL: InvalidInput,
    -errno.ERANGE: InvalidInput,
    -errno.E2BIG: InvalidInput,
    -errno.ENOMEM: OutOfMemory,
}


def make(code: int, text: str, rank: int = NONE, sample: int = NONE, step: int = 0, field: str = "") -> PoiseError:
    """The exception for a negative errno and what the library says of it."""
    return _CLASSES.get(code, PoiseError)(text or os.strerror(-code), code, None if rank == NONE else rank,
                                          None if sample == NONE else sample, step, field)
