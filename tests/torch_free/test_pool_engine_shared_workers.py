"""``PoolEngine`` with several envs a process: they run at once, and what ends their process ends them together.

What it has in common with other pools is tested in ``test_pool_engine.py``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import waiting_envs
from vector_classes import travels
from waiting_envs import ActingEnv, acting, await_entry, closed_envs, make_gates
from worker_processes import PATIENCE, descendants, start_script, still_running, watch

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.local import LocalEngine
from gymbridge.engine.pool import PoolEngine
from gymbridge.errors import UnpicklableError, WorkerDiedError, WorkerStartError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests the ends of workers as Linux has them")

travels(sys.modules[__name__], waiting_envs)

RESET, STEP = Op.RESET, Op.STEP
INFOS = GymHostOptions.for_gymnasium(np.dtype(np.float64))
METHODS = ["starter", "exec", "fork", "spawn", "forkserver"]


def reset_pool(makers: list[Any], envs_per_worker: int, **how: Any) -> PoolEngine[Any]:
    """A pool whose envs have been reset."""
    pool: PoolEngine[Any] = PoolEngine(makers, INFOS, envs_per_worker=envs_per_worker, **how)
    pool.allocate()
    pool.run(bytes([RESET] * len(makers)), None)
    return pool


@pytest.fixture
def pool(tmp_path: Path) -> Any:
    """Envs 0 and 1 in one process, 2 and 3 in another, 4 in a third; each has a gate."""
    engine = reset_pool(acting(5, tmp_path), 2)
    yield engine
    engine.close(terminate=True)
    gc.collect()


def step(pool: PoolEngine[Any], rows: list[int], **options: Any) -> None:
    pool.submit(rows, bytes([STEP]) * len(rows), [np.zeros(len(rows), np.int64)], **options)


def taken(pool: PoolEngine[Any], rows: list[int]) -> tuple[Any, Block]:
    """The report of rows, and the block with what they gave."""
    block = Block(pool.block.layout.rows(0, len(rows)))
    return pool.take(rows, block), block


def death_of(pool: PoolEngine[Any], row: int) -> WorkerDiedError:
    """How the worker of a row has died, whose work is at its end."""
    error = taken(pool, [row])[0].errors[0]
    assert isinstance(error, WorkerDiedError)
    return error


def pids(pool: PoolEngine[Any]) -> list[int]:
    """The process of each env."""
    found: list[int] = pool.each("call", [("pid", (), {})] * pool.num_envs)
    return found


def descriptors(pid: int | str = "self") -> set[str]:
    return set(os.listdir(f"/proc/{pid}/fd"))


def barrier_of_process(parties: int) -> threading.Barrier:
    """The same one to all that ask in a process; kept where modules are, of which each worker has its own otherwise."""
    barrier: threading.Barrier = vars(sys).setdefault("_barrier_of_tests", threading.Barrier(parties))
    return barrier


class MeetingEnv(ActingEnv):
    """Is made, reset, stepped, called and closed only together with the others of its process."""

    def __init__(self, index: int, parties: int, folder: Path | None = None):
        self.parties = parties
        super().__init__(index, folder, act="")

    def obey(self, place: str) -> None:
        barrier_of_process(self.parties).wait(PATIENCE)


# ---------------------------------------------------------------- at once


@pytest.mark.parametrize("method", METHODS)
def test_envs_of_a_process_run_at_once(method: Any, tmp_path: Path) -> None:
    """Each does everything only when the others of its process do it too, which none would if they took turns."""
    parties = [3, 3, 3, 1]
    makers = [
        lambda row=row, parties=parties: MeetingEnv(row, parties, tmp_path) for row, parties in enumerate(parties)
    ]
    pool = reset_pool(makers, 3, method=method)
    for lanes in ((), (1,), (0, 1, 2)):
        for lane in lanes:
            step(pool, [lane], lane=True)
        rest = [row for row in range(4) if row not in lanes]
        step(pool, rest)
        for lane in lanes:
            pool.wait_for(lane)
        assert sorted(pool.wait(len(rest))) == rest
        _, block = taken(pool, [0, 1, 2, 3])
        assert block.next["observation",][:, 0].tolist() == [0, 1, 2, 3]
    pool.each("call", [("act_now", (), {})] * 4)
    assert pool.each("attribute", [("steps",)] * 4) == [3] * 4
    own = pids(pool)
    assert own == [own[0]] * 3 + [own[3]]
    assert len({os.getpid(), *own}) == 3
    watched = watch(set(own))
    pool.close()
    assert not still_running(watched)
    assert closed_envs(tmp_path) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("num_envs", "envs_per_worker", "sizes"),
    [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 8, [3]), (3, np.int64(1), [1] * 3)],
)
def test_envs_are_put_together_in_order(num_envs: int, envs_per_worker: Any, sizes: list[int]) -> None:
    """The last process may have fewer."""
    pool = reset_pool(acting(num_envs), envs_per_worker)
    own = pids(pool)
    assert [own.count(pid) for pid in dict.fromkeys(own)] == sizes
    assert own == [pid for pid in dict.fromkeys(own) for _ in range(own.count(pid))]
    assert pool.envs_per_worker == envs_per_worker
    pool.close()


@pytest.mark.parametrize(("given", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError)])
def test_a_bad_number_of_envs_a_process_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"envs_per_worker: got {given}"):
        PoolEngine(acting(2), INFOS, envs_per_worker=given)


def test_they_do_what_envs_in_this_process_do() -> None:
    """For the same seeds, whatever runs beside them."""

    def rollout(engine: Any) -> list[Any]:
        engine.allocate()
        engine.run(bytes([RESET] * 4), None, [{"seed": row} for row in range(4)])
        seen = []
        for number in range(60):
            engine.run(bytes([Op.STEP_MAYBE_RESET] * 4), [np.full(4, number % 2)])
            sections = (engine.block.next, engine.block.root)
            seen.append([{key: array.copy() for key, array in section.items()} for section in sections])
        engine.close()
        return seen

    def makers() -> list[Any]:
        return [lambda: gym.make("CartPole-v1")] * 4

    expected = rollout(LocalEngine([make() for make in makers()], INFOS))
    np.testing.assert_equal(rollout(PoolEngine(makers(), INFOS, envs_per_worker=3)), expected)


@pytest.mark.parametrize(("method", "is_common"), [(None, False), ("spawn", False), ("fork", True)])
def test_what_makers_have_in_common_each_env_has_for_itself(method: Any, is_common: bool) -> None:
    """As in processes of their own; but a fork has what there was here."""
    common: list[int] = []

    def make() -> ActingEnv:
        env = ActingEnv()
        env.common = common  # type: ignore[attr-defined]
        return env

    pool = reset_pool([make, make], 2, method=method)
    pool.follow(0, ("common", "append"), ((7,), {}))
    assert pool.attribute(0, "common") == [7]
    assert pool.attribute(1, "common") == ([7] if is_common else [])
    pool.close()


# ---------------------------------------------------------------- the start


def test_a_maker_that_raises_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """The envs beside it, in its process and in others, are closed."""

    def fail() -> gym.Env[Any, Any]:
        raise LookupError("no such level")

    reset_pool(acting(2), 2).close()  # what stays for later workers comes with the first
    gc.collect()
    before = descriptors(), descendants(dead=True)
    with pytest.raises(LookupError, match="no such level") as raised:
        PoolEngine([*acting(2, tmp_path), fail, *acting(1)], INFOS, envs_per_worker=3)
    assert raised.value.env_index == 2  # type: ignore[attr-defined]
    assert closed_envs(tmp_path) == {0, 1}
    del raised
    gc.collect()
    assert (descriptors(), descendants(dead=True)) == before


@pytest.mark.parametrize(("act", "code"), [("exit", 3), ("exit at once", 3), ("kill", -9)])
def test_a_maker_that_ends_its_process(act: str, code: int) -> None:
    makers = [*acting(3), lambda: ActingEnv(3, act=f"{act} in init")]
    with pytest.raises(WorkerDiedError) as raised:
        PoolEngine(makers, INFOS, envs_per_worker=2)
    assert (raised.value.worker, raised.value.env_indices, raised.value.exit_code) == (1, (2, 3), code)


class OnlyHere:
    """A maker that pickles, and cannot be unpickled in a worker."""

    def __call__(self) -> gym.Env[Any, Any]:
        raise AssertionError("never called")

    def __reduce__(self) -> Any:
        return int, ("no number",)


@pytest.mark.parametrize("num_before", [1, 300])
def test_a_maker_that_cannot_be_unpickled(num_before: int) -> None:
    """However much its process was sent that it does not read any more."""
    with pytest.raises(WorkerStartError, match=r"could not read what it is to run: ValueError: .*no number"):
        PoolEngine([*acting(num_before), OnlyHere()], INFOS, envs_per_worker=num_before + 1)


def test_a_maker_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def make() -> gym.Env[Any, Any]:
        return ActingEnv(int(lock.locked()))

    with pytest.raises(UnpicklableError, match=r"the maker of env 2 .*closure variable 'lock'.*context=\"fork\""):
        PoolEngine([*acting(2), make], INFOS, envs_per_worker=3)
    reset_pool([*acting(2), make], 3, method="fork").close()


def test_makers_that_take_too_long_are_named(tmp_path: Path) -> None:
    make_gates(2, tmp_path)
    makers = [*acting(1), lambda: ActingEnv(1, tmp_path, "wait in init"), *acting(1)]
    before = descendants()
    with pytest.raises(WorkerStartError, match=r"the envs \[1\] were not made within the start timeout"):
        PoolEngine(makers, INFOS, envs_per_worker=2, start_timeout=1.0)
    gc.collect()
    assert len(descendants() - before) <= 1  # the starter, if there was none


@pytest.mark.parametrize("call", [2, 5, 8])
def test_a_start_that_runs_out_of_descriptors_leaves_none(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reset_pool(acting(2), 2).close()
    gc.collect()
    before = descriptors(), descendants(dead=True)
    calls, pipe = 0, os.pipe

    def pipe_or_none() -> tuple[int, int]:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError("too many")
        return pipe()

    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", pipe_or_none)
        with pytest.raises(OSError, match="too many"):
            PoolEngine(acting(4), INFOS, envs_per_worker=2)
    gc.collect()
    watched = watch(descendants() - before[1])
    assert not still_running(watched)
    assert descriptors() == before[0]


@pytest.mark.parametrize("envs_per_worker", [1, 2])
def test_a_process_that_dies_before_it_has_its_memory(envs_per_worker: int, tmp_path: Path) -> None:
    def make() -> ActingEnv:
        (tmp_path / "pid").write_text(str(os.getpid()))
        return ActingEnv(0)

    pool: PoolEngine[Any] = PoolEngine([make, *acting(2)], INFOS, envs_per_worker=envs_per_worker)
    pid = int((tmp_path / "pid").read_text())
    watched = watch([pid])
    os.kill(pid, signal.SIGKILL)
    assert not still_running(watched)
    for _ in range(2):
        with pytest.raises(WorkerDiedError, match=r"worker 0, which .* has died: killed by SIGKILL"):
            pool.allocate()
    pool.close()


# ---------------------------------------------------------------- the cores


@pytest.mark.parametrize("method", [None, "fork"])
def test_envs_have_the_cores_of_their_process(method: Any) -> None:
    """When they are made, when they run, and in what they start."""

    def make() -> ActingEnv:
        env = ActingEnv()
        env.at_first = os.sched_getaffinity(0)  # type: ignore[attr-defined]
        env.inherited = set()  # type: ignore[attr-defined]
        thread = threading.Thread(target=lambda: env.inherited.update(os.sched_getaffinity(0)))  # type: ignore[attr-defined]
        thread.start()
        thread.join()
        return env

    usable = sorted(os.sched_getaffinity(0))
    masks = [{usable[-1]}, set(usable)]
    for given in (masks, lambda worker: masks[worker], [np.array([usable[-1]]), range(usable[0], usable[-1] + 1)]):
        if list(range(usable[0], usable[-1] + 1)) != usable and given is not masks:
            continue
        pool = reset_pool([make] * 3, 2, method=method, worker_affinity=given)
        for name in ("at_first", "inherited"):
            assert pool.each("attribute", [(name,)] * 3) == [masks[0], masks[0], masks[1]]
        assert pool.each("call", [("cores", (), {})] * 3) == [masks[0], masks[0], masks[1]]
        main = {pid: os.sched_getaffinity(pid) for pid in pids(pool)}
        assert [*main.values()] == masks
        pool.close()
    assert sorted(os.sched_getaffinity(0)) == usable


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([[0]], ValueError, "worker_affinity: got 1 entries, expected 2"),
        ([[0]] * 3, ValueError, "worker_affinity: got 3 entries, expected 2"),
        ([[], [0]], ValueError, r"worker_affinity: got \[\] for worker 0"),
        (lambda worker: [], ValueError, r"worker_affinity: got \[\] for worker 0"),
        ([[0], [-1]], ValueError, r"worker_affinity: got \[-1\] for worker 1"),
        ([[0], [0, 99999]], ValueError, r"got \[0, 99999\] for worker 1, expected some of the cores"),
        ([[0], [True]], TypeError, r"worker_affinity: got \[True\] for worker 1, expected ints"),
        ([[0], [0.0]], TypeError, r"worker_affinity: got \[0.0\] for worker 1, expected ints"),
        ([[0], "0"], TypeError, r"worker_affinity: got \['0'\] for worker 1, expected ints"),
        ([0, 1], TypeError, r"worker_affinity: got 0 for worker 0"),
        (lambda worker: None, TypeError, r"worker_affinity: got None for worker 0"),
        (0, TypeError, r"worker_affinity: got 0 of type int"),
    ],
)
def test_bad_cores_are_refused_before_a_worker_is_started(
    given: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("gymbridge.engine.worker_kinds.start_worker", never)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(error, match=message):
        PoolEngine(acting(3), INFOS, envs_per_worker=2, worker_affinity=given)


def test_cores_are_refused_where_processes_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_setaffinity")
    with pytest.raises(NotImplementedError, match="worker_affinity"):
        PoolEngine(acting(2), INFOS, envs_per_worker=2, worker_affinity=[[0]])


# ---------------------------------------------------------------- deaths


@pytest.mark.parametrize(("act", "code"), [("kill", -9), ("exit at once", 3), ("exit", 3)])
@pytest.mark.parametrize("lane", [False, True])
def test_a_process_that_dies_fails_what_all_its_envs_had_under_way(
    pool: PoolEngine[Any], tmp_path: Path, act: str, code: int, lane: bool
) -> None:
    """In a lane and not; the envs of other processes go on."""
    pool.set_attribute(0, "act", "tell and wait")
    pool.set_attribute(1, "act", act)
    step(pool, [0], lane=lane)
    await_entry(tmp_path, 0)
    step(pool, [2])
    step(pool, [1], lane=not lane)
    in_lane, in_batch = (0, 1) if lane else (1, 0)
    pool.wait_for(in_lane, PATIENCE)
    assert sorted(pool.wait(2, PATIENCE)) == [in_batch, 2]
    for row in (0, 1):
        death = death_of(pool, row)
        assert (death.worker, death.env_indices, death.exit_code) == (0, (0, 1), code)
        with pytest.raises(WorkerDiedError):
            step(pool, [row])
    taken(pool, [2])
    step(pool, [2, 3, 4])
    assert sorted(pool.wait(3)) == [2, 3, 4]
    assert not taken(pool, [2, 3, 4])[0].errors
    report = pool.run(bytes([0, 0, STEP, STEP, STEP]), [np.zeros(5, np.int64)])
    assert not report.errors
    pool.close()
    assert closed_envs(tmp_path) == {2, 3, 4} | ({1} if act == "exit" else set())


def test_what_was_done_before_the_death_is_kept(pool: PoolEngine[Any]) -> None:
    """And an env that was idle then is found dead when it is given work."""
    watched = watch([pids(pool)[2]])
    step(pool, [3])
    assert pool.wait(1) == [3]
    os.kill(next(iter(watched)), signal.SIGKILL)
    assert not still_running(watched)
    report, block = taken(pool, [3])
    assert not report.errors
    assert block.next["observation",].tolist() == [[3, 1]]
    step(pool, [2, 4])
    assert sorted(pool.wait(2)) == [2, 4]
    death = death_of(pool, 2)
    assert (death.worker, death.env_indices, death.exit_code) == (1, (2, 3), -9)
    taken(pool, [4])
    with pytest.raises(WorkerDiedError):
        pool.each("attribute", [("index",)] * 5)


def test_a_death_in_a_round_and_in_a_call(pool: PoolEngine[Any], tmp_path: Path) -> None:
    pool.set_attribute(0, "act", "wait")  # its process dies meanwhile
    pool.set_attribute(1, "act", "kill")
    report = pool.run(bytes([STEP] * 5), [np.zeros(5, np.int64)])
    assert sorted(report.errors) == [0, 1]
    assert {error.env_indices for error in report.errors.values()} == {(0, 1)}  # type: ignore[attr-defined]
    pool.set_attribute(3, "act", "exit")
    with pytest.raises(WorkerDiedError, match=r"worker 1, which ran the envs \[2, 3\], has died: exit code 3"):
        pool.call(3, "act_now")
    assert pool.attribute(4, "steps") == 1


def test_threads_with_a_lane_each_hear_of_the_death_of_their_process(pool: PoolEngine[Any], tmp_path: Path) -> None:
    """At once, and both have its signal."""
    deaths: list[WorkerDiedError] = []

    def drive(row: int) -> None:
        step(pool, [row], lane=True)
        pool.wait_for(row)
        deaths.append(death_of(pool, row))

    for row in (0, 1):
        pool.set_attribute(row, "act", "tell and wait")
    pid = pids(pool)[0]
    threads = [threading.Thread(target=drive, args=(row,)) for row in (0, 1)]
    for row, thread in enumerate(threads):
        thread.start()
        await_entry(tmp_path, row)
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(PATIENCE)
    assert [(death.worker, death.exit_code) for death in deaths] == [(0, -9)] * 2


@pytest.mark.parametrize("method", METHODS)
def test_an_env_that_raises_what_ends_a_process_ends_its_own(method: Any, tmp_path: Path) -> None:
    """An env of the process that is idle is closed, one that hangs is not waited for."""
    pool = reset_pool(acting(3, tmp_path), 3, method=method)
    watched = watch({pids(pool)[0]})
    pool.set_attribute(0, "act", "tell and wait")
    pool.set_attribute(1, "act", "exit")
    step(pool, [0])
    await_entry(tmp_path, 0)
    step(pool, [1])
    assert sorted(pool.wait(2, PATIENCE)) == [0, 1]
    assert {death_of(pool, row).exit_code for row in (0, 1)} == {3}
    assert not still_running(watched)
    assert closed_envs(tmp_path) == {1, 2}
    pool.close()


def test_a_child_that_an_env_has_forked_in_c_does_not_hide_the_death(pool: PoolEngine[Any]) -> None:
    """It holds the pipes of all envs of the process."""

    def fork() -> int:
        child: int = ctypes.CDLL(None).fork()  # no hook of Python's runs
        if child == 0:
            ctypes.CDLL(None).pause()
        return child

    pool.set_attribute(1, "fork", fork)
    child = pool.call(1, "fork")
    try:
        pool.set_attribute(0, "act", "kill")
        pool.set_attribute(1, "act", "wait")
        step(pool, [1], lane=True)
        step(pool, [0])
        assert pool.wait(1, PATIENCE) == [0]
        pool.wait_for(1, PATIENCE)
        assert [death_of(pool, row).exit_code for row in (0, 1)] == [-9, -9]
        os.kill(child, 0)  # it does live on
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # in the worker too
def test_a_process_that_an_env_forks_has_none_of_our_descriptors(pool: PoolEngine[Any], tmp_path: Path) -> None:
    """But those that are the env's own, or nobody's."""

    def fork() -> None:
        before = descriptors()
        if os.fork() == 0:
            with (tmp_path / "forked").open("w") as file:
                left = before & descriptors()
                paths = [f"/proc/self/fd/{each}" for each in left if int(each) > 2]
                json.dump([os.readlink(path) for path in paths if os.path.exists(path)], file)
            os._exit(0)
        os.wait()

    pool.set_attribute(0, "fork", fork)
    pool.call(0, "fork")
    links = json.loads((tmp_path / "forked").read_text())
    assert not [link for link in links if "gymbridge-mail" in link or link.startswith("socket")]
    assert len([link for link in links if link.startswith("pipe")]) <= 2  # the two of which the threads are told to end


# ---------------------------------------------------------------- the end


def test_close_names_the_env_that_hangs_and_closes_the_others(pool: PoolEngine[Any], tmp_path: Path) -> None:
    watched = watch(set(pids(pool)))
    pool.set_attribute(2, "act", "tell and wait")
    step(pool, [2, 3])
    await_entry(tmp_path, 2)
    with pytest.warns(UserWarning, match=r"workers \[1\] did not close the envs \[2\] in time and were killed"):
        pool.close(timeout=1.0)
    assert not still_running(watched)
    assert closed_envs(tmp_path) == {0, 1, 3, 4}
    with pytest.raises(RuntimeError, match="closed"):
        step(pool, [3])


def test_close_raises_what_an_env_raises_there(pool: PoolEngine[Any], tmp_path: Path) -> None:
    pool.set_attribute(1, "act", "raise in close")
    with pytest.raises(OSError, match="cannot close") as raised:
        pool.close()
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    assert closed_envs(tmp_path) == {0, 2, 3, 4}


def test_it_can_be_terminated(pool: PoolEngine[Any], tmp_path: Path) -> None:
    watched = watch(set(pids(pool)))
    pool.set_attribute(0, "act", "wait")
    step(pool, [0])
    pool.close(terminate=True)
    assert not still_running(watched)
    assert not closed_envs(tmp_path)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", ["close", "drop"])
def test_no_descriptor_and_no_process_is_left(method: Any, end: str, tmp_path: Path) -> None:
    """Nor here nor in the starter, after the close or without one; idle envs are closed in either case."""

    def use() -> None:
        pool = reset_pool(acting(3), 2, method=method)
        watched = watch(set(pids(pool)))
        if end == "close":
            pool.close()
        else:
            gone = weakref.ref(pool)
            del pool
            gc.collect()
            assert gone() is None
        assert not still_running(watched)

    def descriptors_left() -> set[str]:
        reset_pool(acting(1), 2, method=method).close()  # closes what waits for the ends of those before
        gc.collect()
        return descriptors()

    use()  # what stays for later workers comes with the first
    before = descriptors_left()
    for _ in range(3):
        use()
    assert descriptors_left() == before

    pool = reset_pool(acting(3, tmp_path), 2, method=method)
    watched = watch(set(pids(pool)))
    if end == "close":
        pool.close()
    del pool
    gc.collect()
    assert not still_running(watched)
    assert closed_envs(tmp_path) == {0, 1, 2}


def test_dropping_it_kills_the_process_of_an_env_that_is_under_way(tmp_path: Path) -> None:
    pool: Any = reset_pool(acting(4, tmp_path), 2)
    watched = watch(set(pids(pool)))
    pool.set_attribute(1, "act", "tell and wait")
    step(pool, [1])
    await_entry(tmp_path, 1)
    del pool
    gc.collect()
    assert not still_running(watched)
    assert closed_envs(tmp_path) >= {2, 3}
    assert 1 not in closed_envs(tmp_path)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_of_this_process_holds_no_end_of_the_workers(pool: PoolEngine[Any], tmp_path: Path) -> None:
    """It may not use them, and their processes end when this one drops them, though the fork lives on."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            try:
                step(pool, [0])
            except RuntimeError as error:
                code = 0 if "of which this one is a fork" in str(error) else 2
            pool.close()
            os.close(write)
            os.read(read, 1)
        finally:
            os._exit(code)
    other = reset_pool(acting(2), 2)
    late = os.fork()
    if not late:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    watched = watch(set(pids(other)))
    del other
    gc.collect()
    assert not still_running(watched)
    os.close(read)
    os.close(write)
    for fork in (child, late):
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    step(pool, [0, 1])
    assert sorted(pool.wait(2)) == [0, 1]
    taken(pool, [0, 1])


POOL = """
import ctypes, json, os
import gymnasium as gym, numpy as np
from gymbridge.engine.codes import Op
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.pool import PoolEngine
from gymbridge.engine.workers.starter import running_starter

class Env(gym.Env):
    observation_space = action_space = gym.spaces.Box(-1, 1)
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        ctypes.PyDLL(None).pause()  # with the GIL
    def pid(self):
        return os.getpid()

if __name__ == "__main__":
    pool = PoolEngine([Env] * 4, GymHostOptions(), envs_per_worker=2, method=METHOD)
    pool.allocate()
    pool.run(bytes([Op.RESET] * 4), None)
    pids = [pool.call(row, "pid") for row in range(4)]
    if STEPS:
        pool.submit([0], bytes([Op.STEP]), [np.zeros((1, 1), np.float32)])
    print(json.dumps(pids + ([running_starter(60).pid] if METHOD == "starter" else [])), flush=True)
    input()
"""


@pytest.mark.parametrize("method", METHODS)
def test_nothing_outlives_a_killed_parent(method: str, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    """Even where an env holds the GIL of the others of its process."""
    script = f"METHOD, STEPS = {method!r}, True\n{POOL}"
    with start_script(tmp_path, script, subprocess_env) as process:
        assert process.stdout is not None
        watched = watch(set(json.loads(process.stdout.readline())))
        process.kill()
        assert not still_running(watched)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [False, True])
def test_a_script_that_ends_with_a_pool_open_ends_it_quietly(
    method: str, steps: bool, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    script = f"METHOD, STEPS = {method!r}, {steps}\n{POOL}"
    with start_script(tmp_path, script, subprocess_env) as process:
        assert process.stdout is not None
        watched = watch(set(json.loads(process.stdout.readline())))
        _, errors = process.communicate("\n", timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
        assert not still_running(watched)
