# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: the package of this tree with the library of BUILD, a private poised, ranks as
processes.

tests/run starts `rig.py FILE`, which runs all tests of the file; a program whose tests were all skipped ends with
status 77. A file that imports rig may also be run alone. Under sanitizers Python has to be started with their runtime
preloaded; importing this module does that by starting the program again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD") or ROOT / "build").resolve()
PACKAGE = ROOT / "client" / "python"
LIBRARY = BUILD / "libpoise.so"
LIMIT = 240  # seconds for anything here, also under sanitizers on a busy machine


def skip_program(why: str) -> None:
    """Ends the program as skipped."""
    print(why)
    sys.exit(77)


def _preload_sanitizer() -> None:
    """A library that was built with a sanitizer wants its runtime first in the process."""
    if not BUILD.name.startswith("san-") or "LD_PRELOAD" in os.environ:
        return
    if "address" not in BUILD.name:
        skip_program(f"{BUILD.name}: only AddressSanitizer can be preloaded into Python")
    found = subprocess.run([os.environ.get("CC", "cc"), "-print-file-name=libasan.so"], capture_output=True, text=True)
    runtime = found.stdout.strip()
    if not os.path.isabs(runtime) or not os.path.exists(runtime):
        skip_program("libasan.so was not found: Python cannot load a library that was built with AddressSanitizer")
    options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # the interpreter's own are not ours
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": runtime,
                                                                         "ASAN_OPTIONS": options})


_preload_sanitizer()
if not LIBRARY.exists():
    sys.exit(f"{LIBRARY} is not there: run make")
os.environ["POISE_LIBRARY"] = str(LIBRARY)
os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(BUILD / "pycache")  # nothing is left in the source tree
os.environ["PYTHONPATH"] = f"{PACKAGE}:{Path(__file__).parent}"
for name in ("RANK", "WORLD_SIZE", "POISE_JOB", "POISE_SOCKET_DIR", "POISE_RECORD", "POISE_COORDINATORS",
             "TORCHELASTIC_RUN_ID"):
    os.environ.pop(name, None)
sys.path.insert(0, str(PACKAGE))


def main(module: Any = "__main__") -> None:
    """Runs the tests of a module, and ends the program."""
    alone = module == "__main__"
    program = unittest.main(module=module, argv=sys.argv if alone else sys.argv[:1], exit=False)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun and len(result.skipped) == result.testsRun:
        skip_program("; ".join(sorted({why for _, why in result.skipped})))
    sys.exit(0 if result.testsRun else "no tests")


def run_file(path: str) -> None:
    """Runs the tests of a file."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    main(module)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for a condition and returns its value."""
    end = time.monotonic() + LIMIT
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.01)  # between two looks


class Daemon:
    """A poised of its own in a temporary directory; a context manager."""

    def __init__(self, *flags: str) -> None:
        self.top = tempfile.mkdtemp(prefix="poise-test-")
        self.dir = self.top + "/run"
        self.log = open(self.top + "/log", "w+")
        ready, tell = os.pipe()
        self.process = subprocess.Popen([str(BUILD / "poised"), "--socket-dir", self.dir, "--config", "/dev/null",
                                         "--ready-fd",
                                         str(tell), *flags], pass_fds=[tell], stdout=self.log, stderr=self.log)
        os.close(tell)
        with os.fdopen(ready, "rb") as pipe:
            if not pipe.read(1):
                raise AssertionError("poised does not get ready: " + self.text())

    def text(self) -> str:
        """Its log so far."""
        return Path(self.log.name).read_text()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = "killed"
        text = self.text()
        self.log.close()
        shutil.rmtree(self.top, ignore_errors=True)
        if status != 0:
            raise AssertionError(f"poised ends with {status}: {text}")


_fork = multiprocessing.get_context("fork")  # no group is open in the parent


def _child(function: Callable[..., Any], pipe: Any, rank: int, args: tuple[Any, ...]) -> None:
    faulthandler.dump_traceback_later(LIMIT - 40, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        pipe.send((True, function(rank, *args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


@contextlib.contextmanager
def processes(n: int, function: Callable[..., Any], *args: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """n processes that run function(rank, *args); yields them and the pipes of their results. Ends them."""
    pipes = [_fork.Pipe(duplex=False) for _ in range(n)]
    started = [_fork.Process(target=_child, args=(function, pipes[rank][1], rank, args)) for rank in range(n)]
    for process in started:
        process.start()
    for _, tell in pipes:
        tell.close()
    try:
        yield started, [pipe for pipe, _ in pipes]
    finally:
        for process in started:
            process.join(0)
            if process.is_alive():
                process.kill()
            process.join()
        for pipe, _ in pipes:
            pipe.close()


def ranks(n: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What function(rank, *args) returns in n processes, by rank. One that fails or dies fails the test."""
    results: list[Any] = [None] * n
    failures = []
    with processes(n, function, *args) as (started, pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
        end = time.monotonic() + LIMIT
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"ranks {sorted(waiting.values())} do not end" + "".join(failures))
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[arg-type]
                try:
                    good, value = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    started[rank].join()
                    good, value = False, f"died with {started[rank].exitcode}"
                if good:
                    results[rank] = value
                else:
                    failures.append(f"\nrank {rank}: {value}")
    if failures:
        raise AssertionError("".join(failures))
    return results


if __name__ == "__main__":
    import rig  # the one that tests import

    rig.run_file(sys.argv[1])
