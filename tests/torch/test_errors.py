# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on one rank: that rank sees it as it does without poise, the others are told who and what."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import unittest
import warnings

import cluster
import loading
import poise
from loading import length, loader_of


def story(balanced) -> list:
    """All that a loop sees that goes on after errors: ids of batches, and errors as (class, text)."""
    found: list = []
    iterator = iter(balanced)
    while True:
        try:
            found.append(sorted(next(iterator)["id"]))
        except StopIteration:
            return found
        except Exception as error:
            found.append((type(error), str(error)))


# ------------------------------------------------------------------------------------------------------------ bad input


def broken_dataset(rank, workers):
    return story(poise.balance(loader_of(rank, workers, bad=9 if rank == 1 else None), length))


def bad_length(rank, workers, kind):
    def lengths(sample):
        if sample["id"] != 1005:
            return length(sample)
        return {"nan": float("nan"), "negative": -3, "raises": None}[kind] if kind != "raises" else sample["nothing"]

    return story(poise.balance(loader_of(rank, workers), lengths))


def bad_sample(rank):
    steps = [[loading.make(1000 * rank + 4 * step + i) for i in range(4)] for step in range(3)]
    if rank == 0:
        steps[1][2]["hook"] = lambda: 0
    return story(poise.balance(steps, length, collate_fn=loading_ids))


def loading_ids(samples):
    return {"id": [sample["id"] for sample in samples]}


def bad_collate(rank):
    def collate(samples):
        if any(sample["id"] == 1005 for sample in samples):
            raise KeyError("labels")
        return loading.collate(samples)

    return story(poise.balance(loader_of(rank, 2, collate_fn=collate), length))


class Stubborn:
    """An iterable that raises at the second batch and goes on."""

    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        self.i = 0
        return self

    def __next__(self):
        self.i += 1
        if self.rank == 1 and self.i == 2:
            raise OSError("the disk is gone")
        if self.i > 3:
            raise StopIteration
        return [loading.make(1000 * self.rank + 4 * self.i + j) for j in range(4)]


def stubborn(rank):
    return story(poise.balance(Stubborn(rank), length, collate_fn=loading_ids))


class Input(cluster.Case):
    def check(self, results, step: int, own: type, pattern: str, bad: int = 1) -> None:
        """Step `step` is an error on all ranks, `own` on the bad one; all other steps come as ever."""
        for rank, found in enumerate(results):
            kind, text = found[step]
            self.assertIs(own if rank == bad else poise.StepError, kind, text)
            self.assertRegex(text, pattern)
            if rank != bad:
                self.assertIn(f"rank {bad}", text)
            self.assertTrue(all(isinstance(item, list) for i, item in enumerate(found) if i != step), found)
        delivered = [ident for found in results for i, item in enumerate(found) if i != step for ident in item]
        self.assertEqual(len(delivered), len(set(delivered)))

    def test_a_dataset_that_raises(self):
        for workers in (0, 2):
            results = self.ranks(broken_dataset, 2, workers)
            self.check(results, 2, ValueError, "image 9 is broken")
            self.assertEqual([6, 6], [len(found) for found in results])

    def test_an_iterable_that_raises_and_goes_on(self):
        results = self.ranks(stubborn, 2)
        self.check(results, 1, OSError, "the disk is gone")

    def test_bad_lengths(self):
        for workers, kind, pattern in (
            (0, "nan", "length of phase length is nan"),
            (2, "negative", "is -3: a length cannot be negative"),
            (0, "raises", r"KeyError: 'nothing' \(test_errors.py:\d+\)"),
            (2, "raises", "KeyError"),
        ):
            with self.subTest(workers=workers, kind=kind):
                results = self.ranks(bad_length, 2, workers, kind)
                self.check(results, 1, poise.StepError, "sample 1 of loader batch 0: .*" + pattern)

    def test_a_sample_that_cannot_be_pickled(self):
        self.check(self.ranks(bad_sample, 2), 1, poise.StepError, "sample 2 of loader batch 0: .*pickle", bad=0)

    def test_a_collate_fn_that_raises_is_its_own_ranks_matter(self):
        results = self.ranks(bad_collate, 2)
        errors = [item for found in results for item in found if isinstance(item, tuple)]
        self.assertEqual([(KeyError, "'labels'")], errors)
        self.assertEqual([6, 6], [len(found) for found in results])


# --------------------------------------------------------------------------------------------------- processes that die


def killed_worker(rank, place):
    balanced = poise.balance(loader_of(rank, 2, n=400, persistent_workers=True), length)
    iterator = iter(balanced)
    next(iterator)
    workers = [int(line.split()[0]) for line in os.popen(f"ps --ppid {os.getpid()} -o pid=").read().splitlines()]
    begin = time.monotonic()
    if rank == 1:
        import multiprocessing

        victim = multiprocessing.active_children()[0]
        assert victim.pid in workers
        os.kill(victim.pid, signal.SIGKILL)
    try:
        for _ in iterator:
            pass
    except RuntimeError as error:  # torch's own
        balanced.close()
        return "RuntimeError", str(error), time.monotonic() - begin
    except poise.PoiseError as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "nothing", "", 0.0


def dying_rank(rank):
    iterator = iter(poise.balance(loader_of(rank, n=400), length))
    next(iterator)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        for _ in iterator:
            pass
    except poise.Aborted as error:
        return str(error), time.monotonic() - begin
    return "", 0.0


def raising_trainer(rank, workers):
    begin = time.monotonic()
    try:
        for i, _ in enumerate(poise.balance(loader_of(rank, workers, n=400), length)):
            if rank == 0 and i == 2:
                raise ZeroDivisionError("the loss is gone")
    except poise.Aborted as error:
        return str(error), time.monotonic() - begin
    return "", 0.0


def breaking(rank, at):
    balanced = poise.balance(loader_of(rank, n=400), length)
    for i, _ in enumerate(balanced):
        if i == at[rank]:
            break
    try:
        return len(list(balanced))
    except poise.PoiseError as error:
        return str(error)


class Deaths(cluster.Case):
    def test_a_trainer_that_raises_ends_soon_and_is_named(self):
        for workers in (0, 2):
            outcomes = self.outcomes(raising_trainer, 2, workers)
            self.assertIn("ZeroDivisionError", outcomes[0].error)
            text, seconds = outcomes[1].value
            self.assertIn("rank 0", text)
            self.assertLess(seconds, 25)

    def test_ranks_that_break_at_different_steps_are_told(self):
        for text in self.ranks(breaking, 2, (1, 2)):
            self.assertRegex(text, "first_step|rank 0 .*left")

    def test_a_killed_worker_raises_in_its_usual_time(self):
        outcomes = self.outcomes(killed_worker, 2, None)
        kind, text, seconds = outcomes[1].value
        self.assertEqual("RuntimeError", kind)
        self.assertRegex(text, r"DataLoader worker \(pid.*\) (is killed|exited)")
        self.assertLess(seconds, 30)
        kind, text, seconds = outcomes[0].value
        self.assertIn(kind, ("StepError", "Aborted"))
        self.assertIn("rank 1", text)

    def test_a_killed_rank_is_named(self):
        outcomes = self.outcomes(dying_rank, 2)
        text, seconds = outcomes[0].value
        self.assertRegex(text, "rank 1 .*died")
        self.assertEqual(-signal.SIGKILL, outcomes[1].exitcode)


# --------------------------------------------------------------------------------------------------------------- Ctrl-C


def interrupted(rank, threads, pipes):
    started, go_on = pipes

    def steps():
        yield [loading.make(1000 * rank + i) for i in range(4)]
        if rank == 1:
            go_on.recv()  # a loader that takes its time
        yield [loading.make(1000 * rank + i) for i in range(4)]

    iterator = iter(poise.balance(steps(), length, background=threads))
    first = next(iterator)
    if rank == 1:
        return len(first)
    threading.Thread(target=tell_when_waiting, args=(started,), daemon=True).start()
    try:
        next(iterator)
    except KeyboardInterrupt:
        return time.monotonic()
    return None


def tell_when_waiting(started):
    """Tells the test when the main thread is inside the iterator's next()."""
    main = threading.main_thread().ident

    def names():
        frame = sys._current_frames()[main]
        while frame is not None:
            yield frame.f_code.co_name
            frame = frame.f_back

    cluster.until(lambda: any(name in ("_wait", "_take") for name in names()))
    started.send(os.getpid())


class Interrupts(cluster.Case):
    def test_ctrl_c_is_answered_at_once(self):
        for threads in (False, True):
            started, tell_start = cluster.FORK.Pipe(duplex=False)
            go_on, tell_go_on = cluster.FORK.Pipe(duplex=False)
            ranks = self.start(interrupted, 2, threads, (tell_start, go_on))
            pid = started.recv()
            sent = time.monotonic()
            os.kill(pid, signal.SIGINT)
            answered = ranks.pipes[0].poll(30)
            tell_go_on.send("on")
            outcomes = ranks.outcomes()
            self.assertTrue(answered)
            self.assertEqual("", outcomes[0].error)
            self.assertLess(outcomes[0].value - sent, 5.0)
            self.assertLess(time.monotonic() - sent, 25.0)  # close_timeout is 30 s: nobody waits for one who has left


# ------------------------------------------------------------------------------------------------------ identical ranks


def twins(rank, different):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = story(poise.balance(loader_of(rank if different else 0, 2, n=40), length))
    assert len(found) == 10, found
    return [str(w.message) for w in caught if issubclass(w.category, poise.PoiseWarning)]


def no_worries(rank):
    warnings.simplefilter("error", poise.PoiseWarning)
    return story(poise.balance(loader_of(0, n=40), length))


class Twins(cluster.Case):
    def test_identical_ranks_are_named(self):
        for text in self.ranks(twins, 2, False):
            self.assertRegex(" ".join(text), "ranks (0 and 1|1 and 0) submitted the same samples")
        self.assertEqual([[], []], self.ranks(twins, 2, True))

    def test_warnings_that_are_errors_lose_no_batch(self):
        for found in self.ranks(no_worries, 2):
            self.assertEqual(10, sum(isinstance(item, list) for item in found))
            self.assertIn(poise.PoiseWarning, [item[0] for item in found if isinstance(item, tuple)])


if __name__ == "__main__":
    unittest.main()
