# SPDX-License-Identifier: Apache-2.0
"""A rank's handle of a group: submit samples, read balanced micro-batches.

Waiting. A signal's handler runs when the interpreter is back from C, so every wait is cut into slices: Ctrl-C is
answered within one. poise_interrupt() would be quicker, but one that comes when the wait is just over ends a later,
innocent one. Opening and closing cannot be cut; the main thread lets another one do them and waits for it.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import logging
import os
import re
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from . import _c, ranks
from .batch import Batch, Hold
from .errors import Aborted, EndOfData, InvalidInput, PoiseError, PoiseWarning, UseAfterFork, make
from .options import Phase, make_options, phases_of
from .samples import Declared, Field, Packed, Sample, field_array

__all__ = ["Group", "Note"]

_SLICE_MS = 100  # what Ctrl-C waits for at most; far above the cost of another call
_HELD_SECONDS = 10.0  # held batches fill the memory for so long: nobody is about to release one
_PEER_TIMEOUT_MS = 3_600_000  # the library's default of peer_timeout_ms
_KEPT_NOTES = 256
_SEVERITIES = {_c.INFO: "info", _c.WARNING: "warning", _c.ERROR: "error"}
_SAMPLE_BYTES = ctypes.sizeof(_c.Sample)
_INPUT_ERRORS = (-errno.EINVAL, -errno.ERANGE, -errno.E2BIG)

_HERE = os.path.dirname(__file__) + os.sep

_log = logging.getLogger("poise")
_open_groups: weakref.WeakSet[Group] = weakref.WeakSet()


class Note(NamedTuple):
    """A notice of the library."""
    step: int
    severity: str  # "info", "warning" or "error"
    text: str
    dropped: int  # notices that were lost before this one


class Group:
    """One process's place in a group of data-parallel ranks. Joins at once and blocks until all have; a context
    manager.

    Args:
        job: name of the run; None: POISE_JOB, or made from the launcher's environment.
        group: name of the group in the job.
        rank, n_ranks: the data-parallel rank, and how many there are; None: see poise.ranks.
        replica, n_replicas: which of the processes of that rank that must see the same micro-batches.
        process_group: the data-parallel torch.distributed.ProcessGroup, to take these four from.
        mesh, mesh_dim: a DeviceMesh and the name (names) of its data-parallel dimension, likewise.
        cost: a preset's name ("qwen2.5-vl-7b"; see poise.presets()) or a list of poise.Phase; None: "length".
        reuse: a later next() of an iterator recycles its earlier batch at once, as most loops allow; views of it then
            change. By default a batch keeps its memory until the last view is gone.
        copy: batches own copies of the payload; the ring's slot is free at once.
        options: every member of struct poise_options by its C name: micro_batch_size=2, count="free", mode="shadow",
            prefetch_depth=3, cap_length_micro_batch={"llm": 8192}, plan_only=True ...

    One thread may submit while others read an iterator each. Every wait frees the GIL and answers Ctrl-C.
    """

    def __init__(self, job: str | None = None, group: str = "dp", rank: int | None = None, n_ranks: int | None = None,
                 replica: int | None = None, n_replicas: int | None = None, *, process_group: Any = None,
                 mesh: Any = None,
                 mesh_dim: str | Sequence[str] | None = None, cost: str | Sequence[Phase] | None = None,
                 reuse: bool = False,
                 copy: bool = False, **options: Any) -> None:
        self._p: int | None = None
        self._once: list[int] = []  # the handle, for the one close() that takes it
        self._inside: dict[int, bool] = {}  # threads that are in a call
        self._lib = lib = _c.library()
        self._phases = phases_of("length" if cost is None else cost)
        #: Names of the phases, in the order of Sample.length.
        self.phases = [phase.name for phase in self._phases]
        where = ranks.find(rank, n_ranks, replica, n_replicas, process_group=process_group, mesh=mesh,
                           mesh_dim=mesh_dim)
        self.rank, self.n_ranks, self.replica, self.n_replicas = where[:4]
        known = {"job": job, "group": group, "rank": self.rank, "n_ranks": self.n_ranks, "replica": self.replica,
                 "n_replicas": self.n_replicas}
        opt, keep = make_options(known | options, self._phases)
        if isinstance(cost, str):  # by its name, so that a difference between ranks is told in the user's word
            opt.cost, opt.phases, opt.n_phases = cost.encode(), None, 0
        self.group = group
        self.reuse = reuse
        self.copy = copy
        self._timeout = (opt.peer_timeout_ms or _PEER_TIMEOUT_MS) / 1000
        self._fields: dict[str, Declared] = {}
        self._declared: list[Field] = []
        n_iterators = opt.n_iterators or 1
        self._landing = [Hold(lib.poise_release) for _ in range(n_iterators)]
        self._last: list[Batch | None] = [None] * n_iterators
        self._notes: deque[Note] = deque(maxlen=_KEPT_NOTES)
        self._lent: list[memoryview] = []
        self._p = _open(lib, opt, keep)
        self._once.append(self._p)
        _open_groups.add(self)

    # ----------------------------------------------------------------------------------------------------------- calls

    def _call(self, function: Any, *args: Any) -> int:
        """One call into the library that cannot overlap with close(), which takes the handle away first and looks who
        is inside then. No lock: a signal's exception could leave it locked."""
        me = threading.get_ident()
        self._inside[me] = True
        try:
            p = self._p
            if p is None:
                raise Aborted(f"group {self.group} is closed", -errno.ESHUTDOWN)
            return function(p, *args)
        finally:
            self._inside.pop(me, None)

    def _checked(self, function: Any, *args: Any) -> int:
        err = _c.Err()
        rc = self._call(function, *args, ctypes.byref(err))
        if rc < 0:
            raise _c.error(err, rc)
        return rc

    def _wait(self, timeout: float | None, function: Any, *args: Any, last: tuple[Any, ...] = ()) -> None:
        """A call that may block, with its timeout behind `args` and `last` behind that, in slices."""
        err = _c.Err()
        limit = self._timeout if timeout is None else max(0.0, timeout)
        begin = time.monotonic()
        left = limit * 1000
        held_since = None
        while True:
            rc = self._call(function, *args, _SLICE_MS if left > _SLICE_MS else round(left), *last, ctypes.byref(err))
            if rc >= 0:
                return
            now = time.monotonic()
            left = (begin + limit - now) * 1000
            if rc == -errno.ENOMEM and function is self._lib.poise_next:
                if held_since is None:
                    held_since = now
                    gc.collect()  # batches in reference cycles
                if left <= 0 or now - held_since > _HELD_SECONDS:
                    raise _c.error(err, rc)
            elif rc != -errno.ETIMEDOUT or left <= 0:
                raise _waited(_c.error(err, rc), now - begin)
            else:
                held_since = None
            self._poll_notices()

    # ------------------------------------------------------------------------------------------------------ submitting

    def declare(self, fields: Sequence[Field]) -> None:
        """Declares fields: before the first submission, or new ones between submissions."""
        array = field_array(fields)
        self._checked(self._lib.poise_declare, array, len(fields), ctypes.sizeof(_c.Field))
        for f in fields:
            self._fields[f.name] = Declared(f)
            self._declared.append(f)

    @property
    def fields(self) -> list[Field]:
        """The fields that this process declared."""
        return list(self._declared)

    def submit(self, step: int, samples: Sequence[Sample], timeout: float | None = None) -> None:
        """Submits this rank's samples of a step; steps are consecutive. Copies all payload.

        Waits while it is more than prefetch_depth steps ahead of the one being read, at most `timeout` seconds (None:
        peer_timeout_ms). InvalidInput names sample and field; nothing has happened then: submit again, or fail().
        """
        self._poll_notices()
        packed = Packed(samples, self.phases, self._fields)
        try:
            self._wait(timeout, self._lib.poise_submit, step, packed.address, packed.n, _SAMPLE_BYTES)
        finally:
            packed.release()
        self._take_back()

    def submit_or_fail(self, step: int, samples: Sequence[Sample], timeout: float | None = None) -> PoiseError | None:
        """The same, but bad samples make the step bad on all ranks, whose next() raises StepError with the same text.
        Returns the error, or None."""
        try:
            self.submit(step, samples, timeout)
        except PoiseError as error:
            if error.code not in _INPUT_ERRORS and not (error.code == -errno.ENOMEM and error.step == step):
                raise
            self.fail(step, error.text, timeout)
            return error
        return None

    def fail(self, step: int, reason: str, timeout: float | None = None) -> None:
        """Makes `step`, the next unsubmitted one, bad on all ranks: their next() raises StepError with `reason`."""
        self._wait(timeout, self._lib.poise_fail, step, reason.encode(errors="replace"))

    def end(self, step: int, timeout: float | None = None) -> None:
        """This rank has no data from `step` (the next unsubmitted one) on. Saying so again is fine."""
        self._wait(timeout, self._lib.poise_end, step)

    def alloc(self, n_bytes: int, timeout: float | None = None) -> memoryview:
        """Memory in this rank's arena (aligned to 64 bytes) for values of the next submission, which then copies
        nothing. The view ends with that submission, or with discard()."""
        data = ctypes.c_void_p()
        self._wait(timeout, self._lib.poise_alloc, n_bytes, last=(ctypes.byref(data),))
        lent = (ctypes.c_ubyte * n_bytes).from_address(data.value) if n_bytes and data.value else bytearray()
        view = memoryview(lent).cast("B")
        self._lent.append(view)
        return view

    def discard(self) -> None:
        """Gives back all that alloc() handed out since the last submission."""
        self._checked(self._lib.poise_discard)
        self._take_back()

    def _take_back(self) -> None:
        for view in self._lent:
            try:
                view.release()
            except BufferError:  # a view of the view is left: its owner must know
                pass
        self._lent.clear()

    # --------------------------------------------------------------------------------------------------------- reading

    def next(self, iterator: int = 0, timeout: float | None = None, copy: bool | None = None) -> Batch:
        """The next micro-batch of an iterator.

        Raises EndOfData, StepError (this step is bad on every rank; the next call goes on), Timeout naming what is
        waited for, Aborted, or OutOfMemory where held batches fill the memory.
        """
        self._poll_notices()
        if not 0 <= iterator < len(self._landing):
            raise InvalidInput(f"iterator {iterator}: the options say n_iterators {len(self._landing)}")
        hold = self._landing[iterator]
        if self.reuse and self._last[iterator] is not None:
            self._last[iterator].recycle()  # type: ignore[union-attr]
            self._last[iterator] = None
        if not hold.pointer:  # else a signal's exception came between this call and what follows
            self._wait(timeout, self._lib.poise_next, iterator, last=(ctypes.byref(hold.pointer),))
        self._landing[iterator] = Hold(self._lib.poise_release)
        batch = Batch(hold, self.phases)
        if self.copy if copy is None else copy:
            batch.detach()
        elif self.reuse:
            self._last[iterator] = batch
        return batch

    def batches(self, iterator: int = 0) -> Iterator[Batch]:
        """All micro-batches of an iterator until the data has ended."""
        while True:
            try:
                batch = self.next(iterator)
            except EndOfData:
                return
            yield batch
            del batch  # or it would be held while the next one is waited for

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            return self.next()
        except EndOfData:
            raise StopIteration from None

    # --------------------------------------------------------------------------------------------------------- insight

    def _poll_notices(self) -> None:
        """Takes what the library has to say. Before a call rather than after it: where warnings are errors, none may
        come between a batch and its reader."""
        if self._p is None:
            return
        note = _c.Note()
        fresh = []
        while self._call(self._lib.poise_notice, ctypes.byref(note), ctypes.sizeof(note)) == 1:
            fresh.append(Note(note.step, _SEVERITIES.get(note.severity, "info"), note.text.decode(errors="replace"),
                              note.dropped))
        self._notes.extend(fresh)
        for one in fresh:
            if one.severity == "info":
                _log.info("step %d: %s", one.step, one.text)
            else:
                warnings.warn(f"step {one.step}: {one.text}", PoiseWarning, stacklevel=_level_outside())

    def notices(self) -> list[Note]:
        """All notices since the last call of this function, oldest first (the last 256). Those above "info" were also
        given to warnings.warn() by submit() or next()."""
        self._poll_notices()
        notes = []
        while self._notes:
            notes.append(self._notes.popleft())
        return notes

    def report(self, step: int, seconds: float) -> None:
        """Tells what this rank's own compute of a step took, without waiting for others."""
        self._checked(self._lib.poise_report, step, max(0, round(seconds * 1e9)))

    def stats(self) -> dict[str, int]:
        """Counters of this handle by their C name (struct poise_stats)."""
        stats = _c.Stats()
        rc = self._call(self._lib.poise_stats, ctypes.byref(stats), ctypes.sizeof(stats))
        if rc < 0:
            raise make(rc,
                       "this process is a child of the one that opened the group: open one of its own after the fork")
        return {name: getattr(stats, name) for name, _ in stats._fields_}

    def interrupt(self) -> None:
        """Ends all waits of other threads with Interrupted, and the next wait if none waits now."""
        self._call(self._lib.poise_interrupt)

    # ------------------------------------------------------------------------------------------------------------- end

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._p is None

    def close(self, wait: bool = True) -> None:
        """Leaves the group: serves peers until they have what this rank sent (at most close_timeout_ms; not at all with
        wait=False). Batches that are held stay valid. A second call does nothing."""
        self._p = None
        p = self._once.pop() if self._once else None
        self._inside.pop(threading.get_ident(), None)  # a signal's exception may have left it
        while p is not None and self._inside:
            time.sleep(0.002)  # they see it within a slice
        _open_groups.discard(self)
        for i, hold in enumerate(self._landing):
            hold.drop()
            self._last[i] = None
        self._take_back()
        if p is None:
            return
        if not wait:
            self._lib.poise_hurry(p)
        try:
            _close(self._lib, p, report=wait)
        except UseAfterFork:
            pass  # the parent's; nothing to do here

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # A rank that fails must not serve others for half a minute that wait for it elsewhere.
        self.close(wait=kind is None or issubclass(kind, (EndOfData, GeneratorExit)))

    def __del__(self) -> None:
        if getattr(self, "_p", None) is not None:
            self.close(wait=False)

    def __repr__(self) -> str:
        return f"<poise.Group {self.group} rank {self.rank} of {self.n_ranks}{', closed' if self.closed else ''}>"


def _level_outside() -> int:
    """warnings' stacklevel of the line that called into this package, for the caller of this function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    return level


def _waited(error: PoiseError, seconds: float) -> PoiseError:
    """The library knows of the last slice only."""
    error.text = re.sub(r"^waited \d+ ms", f"waited {round(seconds * 1000)} ms", error.text)
    error.args = (error.text,)
    return error


def _aside(work: Any, abandoned: Any) -> Any:
    """Runs work() so that Ctrl-C is answered: in the main thread, another one does it. If the wait for it is cut short,
    it goes on behind our back and abandoned() takes its result."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    result: list[Any] = []
    lock = threading.Lock()
    gone = False
    done = threading.Event()

    def run() -> None:
        value = work()
        with lock:
            result.append(value)
            if gone:
                abandoned(value)
        done.set()

    threading.Thread(target=run, name="poise", daemon=True).start()
    try:
        done.wait()
    except BaseException:
        with lock:
            gone = True
            if result:
                abandoned(result[0])
        raise
    return result[0]


def _open(lib: ctypes.CDLL, opt: _c.Options, keep: list[Any]) -> int:
    err, p = _c.Err(), ctypes.c_void_p()

    def work(_keep: Any = keep) -> int:
        return lib.poise_open(ctypes.byref(opt), ctypes.byref(p), ctypes.byref(err))

    def abandoned(rc: int) -> None:
        if rc == 0:
            lib.poise_hurry(p)
            lib.poise_close(p, None)

    rc = _aside(work, abandoned)
    if rc < 0:
        raise _c.error(err, rc)
    assert p.value is not None
    return p.value


def _close(lib: ctypes.CDLL, p: int, report: bool) -> None:
    err = _c.Err()
    rc = _aside(lambda: lib.poise_close(p, ctypes.byref(err)), lambda rc: None)
    if rc == -errno.EPERM:
        raise _c.error(err, rc)
    if rc < 0 and report and rc != -errno.EINTR:
        raise _c.error(err, rc)


def _after_fork() -> None:
    """In a child: threads that were in a call are not there."""
    for group in list(_open_groups):
        group._inside.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    """A rank that is through must not look dead to those that still read what it sent."""
    crashed = hasattr(sys, "last_value")
    for group in list(_open_groups):
        try:
            group.close(wait=not crashed)
        except (PoiseError, KeyboardInterrupt) as error:
            _log.warning("group %s: %s", group.group, error)
