"""Wake-ups of worker threads, step by step: what a worker does in two lines may come apart anywhere."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from worker_processes import PATIENCE

from gymbridge.engine.workers.thread import WorkerThread
from gymbridge.engine.workers.thread_wake import ReadyThreads, ThreadEnd, ThreadGroup


def answer_and_pause(end: ThreadEnd, byte: int) -> None:
    """The first half of an answer: it is there, and nobody has been told."""
    end.theirs.answers.append(byte)


def go_on(end: ThreadEnd) -> None:
    """The second half: who waits now is told."""
    end.theirs.arrivals.add(0)


def test_what_is_told_late_is_no_second_answer() -> None:
    """To a batch, a lane or a group that waits for the next one."""
    end = ThreadEnd(0)
    ready, group = ReadyThreads([end]), ThreadGroup([end])

    answer_and_pause(end, 1)
    assert group.wait({0}) == set()
    ready.watch(0)
    go_on(end)
    assert ready.wait(timeout=0) == []
    end.theirs.wake(2)
    assert ready.wait() == [0]
    assert end.take_ready() == 2
    ready.forget(0)

    answer_and_pause(end, 3)
    assert end.take_ready() == 3
    assert not end.is_ready(0)
    go_on(end)
    assert not end.is_ready(0)
    assert not end.is_ready(0.001)

    answer_and_pause(end, 4)
    assert end.take_ready() == 4
    pending = {0}
    assert group.wait(pending, timeout=0) == set()
    go_on(end)
    assert group.wait(pending, timeout=0.001) == set()
    assert pending == {0}


def test_a_late_word_does_not_end_a_lanes_wait() -> None:
    """It comes after the wait has looked, and before it blocks."""
    end = ThreadEnd(0)
    answer_and_pause(end, 1)
    assert end.take_ready() == 1
    told: list[int] = []

    class Told(dict[int, None]):
        def clear(self) -> None:
            super().clear()
            if not told:
                told.append(1)
                go_on(end)
            else:
                end.theirs.wake(2)

    end._own.come = Told()
    assert end.is_ready(None)
    assert end.take_ready() == 2


def test_what_nobody_watches_any_more_is_not_told() -> None:
    ends = [ThreadEnd(0), ThreadEnd(1)]
    ready = ReadyThreads(ends)
    for index in (0, 1):
        ready.watch(index)
    arrivals = ends[0].theirs.arrivals
    answer_and_pause(ends[0], 1)
    ready.forget(0)
    arrivals.add(0)  # the worker had looked up whom to tell
    assert ready.wait(timeout=0) == []
    ends[1].theirs.wake()
    assert ready.wait() == [1]


def test_an_answer_that_comes_while_a_late_word_is_thrown_away_is_kept() -> None:
    end = ThreadEnd(0)
    ready = ReadyThreads([end])
    ready.watch(0)
    go_on(end)

    class Answering(dict[int, None]):
        def pop(self, *arguments: Any) -> Any:
            end.theirs.wake(1)
            return super().pop(*arguments)

    ready._arrivals.come = Answering(ready._arrivals.come)
    assert ready.wait(timeout=0) == []
    assert ready.wait(timeout=0) == [0]


def test_a_wait_for_many_is_woken_once_they_are_there() -> None:
    """Or at its end, with those that are."""
    ends = [ThreadEnd(index) for index in range(3)]
    ready = ReadyThreads(ends)
    for index in range(3):
        ready.watch(index)
    ends[2].theirs.wake()
    assert ready.wait(timeout=0.001, least=2) == [2]
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(ready.wait(least=3)))
    thread.start()
    for index in (0, 1):
        ends[index].theirs.wake()
    thread.join(PATIENCE)
    assert found == [2, 0, 1]


def test_a_worker_that_has_ended_is_ready_and_refuses_commands() -> None:
    worker = WorkerThread(0, lambda end: end.wake(1))
    assert worker.join(PATIENCE)
    end = worker.wake
    ready = ReadyThreads([end])
    ready.watch(0)
    assert ready.wait() == [0]
    assert end.is_ready(None)
    pending = {0}
    assert ThreadGroup([end]).wait(pending) == set()  # what it has left comes first
    assert (pending, end.latest) == (set(), 1)
    pending = {0}
    assert ThreadGroup([end]).wait(pending) == {0}
    with pytest.raises(EOFError):
        end.skip_to(2)
    with pytest.raises(BrokenPipeError):
        end.wake()


def test_a_dropped_worker_ends() -> None:
    ended = threading.Event()

    def job(end: Any) -> None:
        try:
            end.wait()
        except EOFError:
            ended.set()

    worker: Any = WorkerThread(0, job)
    del worker
    assert ended.wait(PATIENCE)
