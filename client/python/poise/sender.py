# SPDX-License-Identifier: Apache-2.0
"""A thread that submits what the trainer's thread has read: cutting a batch and copying it into the arena take the time
of a copy of the payload, which the trainer need not wait for. The loader itself is asked in the trainer's thread only,
since few loaders may be called from another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Sender:
    """Does work in order, in a thread of its own. An error ends it: what is put later is left undone.

    Attributes:
        error: what ended it.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle = threading.Condition()
        self._pending = 0
        self._is_stopped = False

    def put(self, work: Callable[[], None], wake: Callable[[], None]) -> None:
        """Has `work` done after all before it; `wake` is called if it fails."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="poise-sender", daemon=True)
            self._thread.start()
        with self._idle:
            self._pending += 1
        self._queue.put(lambda: self._guarded(work, wake))

    def _guarded(self, work: Callable[[], None], wake: Callable[[], None]) -> None:
        try:
            if self.error is None and not self._is_stopped:
                work()
        except BaseException as error:  # raised where it is waited for
            if not self._is_stopped:
                self.error = error
                wake()
        finally:
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # or a batch would live until the next one comes

    def drain(self, timeout: float | None = None) -> None:
        """Waits until all is done, or for `timeout` seconds."""
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0, timeout)

    def stop(self) -> None:
        """Ends the thread after what it does now; what is queued is left undone, and what fails is of no interest."""
        self._is_stopped = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None
