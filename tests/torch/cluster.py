# SPDX-License-Identifier: Apache-2.0
"""A private poised, and ranks: processes that are forked from the test, which has imported torch already.

    class Loading(cluster.Case):
        def test_x(self):
            results = self.ranks(work, 2, argument)   # work(rank, argument) in two processes, what each returned

A rank's exception fails the test with its traceback, unless the test asks for outcomes(). A private poised serves a
test class.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

BUILD = Path(os.environ.get("BUILD", "build")).resolve()
DEADLINE = 120.0  # seconds: of a whole test's ranks, on a slow machine under load

FORK = multiprocessing.get_context("fork")


class Outcome(NamedTuple):
    """What became of a rank."""

    value: Any  # what it returned
    error: str  # its traceback, or ""
    exitcode: int | None


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Waits for something that nobody tells us of."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.02)  # between two looks


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Poised:
    """A poised of our own in a temporary directory; flags as on its command line."""

    def __init__(self, *flags: str) -> None:
        self.dir = tempfile.mkdtemp(prefix="poise-test-")
        self.log = open(f"{self.dir}/log", "w+")
        self.process = subprocess.Popen(
            [str(BUILD / "poised"), "--socket-dir", self.dir, *flags], stdout=self.log, stderr=self.log
        )
        end = time.monotonic() + DEADLINE
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"poised does not start: {Path(self.dir, 'log').read_text()}")
            time.sleep(0.01)  # between two looks

    def _answers(self) -> bool:
        try:
            return self.get("/healthz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, str]:
        connection = _Unix(f"{self.dir}/status.sock")
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def status(self) -> Any:
        return json.loads(self.get("/status")[1])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def _rank_main(
    work: Callable[..., Any], rank: int, n: int, port: int, env: dict[str, str], pipe: Any, arguments: tuple
) -> None:
    os.environ.update(
        env,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(n),
        LOCAL_WORLD_SIZE=str(n),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID=f"test-{port}",
    )
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    code = 0
    try:
        pipe.send((work(rank, *arguments), ""))
    except BaseException:
        pipe.send((None, traceback.format_exc()))
        code = 1
    finally:
        pipe.close()
    sys.exit(code)  # so that atexit runs as in a program


class Ranks:
    """Running rank processes."""

    def __init__(self, work: Callable[..., Any], n: int, arguments: tuple, env: dict[str, str]) -> None:
        port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(n):
            ours, theirs = FORK.Pipe(duplex=False)
            process = FORK.Process(
                target=_start, args=(work, rank, n, port, env, theirs, arguments), name=f"rank-{rank}"
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def outcomes(self, deadline: float = DEADLINE) -> list[Outcome]:
        """Waits for all of them; kills what is left at the deadline, which is an error."""
        end = time.monotonic() + deadline
        found: list[Any] = [(None, "the process said nothing")] * len(self.pipes)
        left = dict(zip(self.pipes, range(len(self.pipes))))
        while left and time.monotonic() < end:
            for pipe in wait(list(left), timeout=1.0):
                rank = left.pop(pipe)
                try:
                    found[rank] = pipe.recv()
                except EOFError:
                    pass
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        stuck = [process.name for process in self.processes if process.is_alive()]
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()
        if stuck:
            raise AssertionError(
                f"still running after {deadline:.0f} s: {stuck}; {[error for _, error in found if error]}"
            )
        return [Outcome(*found[i], process.exitcode) for i, process in enumerate(self.processes)]


def _start(*arguments: Any) -> None:
    """In the child: a child of a fork has threads of none, and signals as a program has them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert threading.current_thread() is threading.main_thread()
    _rank_main(*arguments)


class Case(unittest.TestCase):
    """A test with a private poised."""

    poised: Poised

    @classmethod
    def setUpClass(cls) -> None:
        cls.poised = Poised()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.poised.close()

    def start(self, work: Callable[..., Any], n: int, *arguments: Any) -> Ranks:
        return Ranks(work, n, arguments, {"POISE_SOCKET_DIR": self.poised.dir})

    def outcomes(self, work: Callable[..., Any], n: int, *arguments: Any) -> list[Outcome]:
        return self.start(work, n, *arguments).outcomes()

    def ranks(self, work: Callable[..., Any], n: int, *arguments: Any) -> list[Any]:
        """What work(rank, *arguments) returned in each of n processes; an exception of any fails the test."""
        outcomes = self.outcomes(work, n, *arguments)
        for rank, outcome in enumerate(outcomes):
            if outcome.error:
                self.fail(f"rank {rank}: {outcome.error}")
        return [outcome.value for outcome in outcomes]
