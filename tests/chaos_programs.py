"""Random programs over the fronts, with faults in them: all else is exact, in time, and cleared up.

``Expected`` is what is known of one env: it says of each result whether that is what the env must have given. A program
draws what is done, has the faults happen, and compares.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import chaos_envs
import chaos_tensordict_envs
import cloudpickle
import numpy as np
import numpy.typing as npt
import pools
from chaos_envs import HUGE, Deed, Unsendable, length_of, reward_of
from chaos_fronts import Front, Made, Round
from worker_processes import PATIENCE, descendants, still_running, watch

from gymbridge.errors import EnvOutputError, RemoteEnvError, UnpicklableError, WorkerDiedError, WorkerTimeoutError

__all__ = ["ChaosProgram", "Counts", "left_behind"]

for module in (chaos_envs, chaos_tensordict_envs, pools):
    cloudpickle.register_pickle_by_value(module)

SLACK = 5.0
"""So many times the time that a call should take, for machines with much to do."""

SECONDS = 2.0
"""That a call should take beside what its envs do."""

START_SECONDS = 15.0
"""The same of a start or a close; a worker of TensorDict envs imports torch."""

Counts = Counter[tuple[str, str]]
"""(fault, ``"tried"`` or ``"survived"``) -> how often."""

DEADLY = {Deed.EXIT: 3, Deed.KILL: -signal.SIGKILL}
HARMLESS = (Deed.STEP, Deed.NAN, Deed.HUGE_INFO)
RAISING = (Deed.RAISE, Deed.RAISE_UNSENDABLE)
FAILING = (*RAISING, Deed.UNPICKLABLE_INFO, Deed.WRONG_SHAPE, Deed.WRONG_DTYPE)
AFTER_RESET = (Deed.ARM_RAISE_IN_RESET, Deed.ARM_EXIT_IN_RESET)
AT_CLOSE = (Deed.ARM_RAISE_IN_CLOSE, Deed.ARM_EXIT_IN_CLOSE)

IN_STEPS = {
    "env raises": (Deed.RAISE,),
    "exception that cannot be sent": (Deed.RAISE_UNSENDABLE,),
    "os._exit": (Deed.EXIT,),
    "kill -9 by itself": (Deed.KILL,),
    "info that cannot be pickled": (Deed.UNPICKLABLE_INFO,),
    "info of 64 MiB": (Deed.HUGE_INFO,),
    "NaN observed": (Deed.NAN,),
    "wrong shape": (Deed.WRONG_SHAPE,),
    "wrong dtype": (Deed.WRONG_DTYPE,),
    "env raises in reset": (Deed.ARM_RAISE_IN_RESET,),
    "os._exit in reset": (Deed.ARM_EXIT_IN_RESET,),
    "env raises in close": (Deed.ARM_RAISE_IN_CLOSE,),
    "os._exit in close": (Deed.ARM_EXIT_IN_CLOSE,),
}
OF_PROCESSES = {
    "kill -9 before a call",
    "kill -9 in a call",
    "stop and continue",
    "os._exit",
    "kill -9 by itself",
    "os._exit in reset",
    "os._exit in close",
    "os._exit while made",
}
BY_HAND = ("kill -9 before a call", "kill -9 in a call", "stop and continue", "hang", "interrupt")
LOST = "has lost what it gave; reset it"
"""What a pool says of an env whose result was being taken when an interrupt came."""

OVER_TIME = "hang over step_timeout"
RARE = {"info of 64 MiB"}
WHILE_MADE = {"env raises while made": "raise", "os._exit while made": "exit"}


class Wrong(AssertionError):
    """A result that an env cannot have given, or an error that should be another."""


class Expected:
    """What is known of one env.

    Attributes:
        state: ``"new"``, ``"running"``, ``"ended"``, ``"failed"`` or ``"dead"``.
        episode, count: those that it shows.
        pid: its process; None where it has not been heard of.
        is_certain: False where it may have begun an episode that nobody has seen.
        most: episodes that it can have begun at most, in all its processes together.
        sent: the round in which it was given something to do last.
        armed: what it may be armed to do in its next reset or in its close; several where nobody has seen which.
        shown: its latest observation.
    """

    def __init__(self, row: int):
        self.row = row
        self.state = "new"
        self.episode = self.count = 0
        self.pid: int | None = None
        self.is_certain = True
        self.most = self.sent = 0
        self.armed = {Deed.STEP}
        self.shown: npt.NDArray[np.float64] | None = None

    def step(self, deed: Deed) -> None:
        """Counts a step, which the env does whatever comes of it."""
        self.count += 1
        if deed >= Deed.ARM_RAISE_IN_RESET:
            self.armed = {deed}

    def reset(self) -> set[Deed]:
        """Counts a reset; what the env may do in it."""
        self.episode += 1
        self.most += 1
        self.count = 0
        done = {armed if armed in AFTER_RESET else Deed.STEP for armed in self.armed}
        self.armed = {Deed.STEP if armed in AFTER_RESET else armed for armed in self.armed}
        return done

    def lose(self, deed: Deed, resets: bool) -> None:
        """Counts a call of which nobody sees whether it has reached the env.

        Args:
            deed: what a step was to do.
            resets: the call resets the env, or may do so.
        """
        self.is_certain = False
        if deed >= Deed.ARM_RAISE_IN_RESET:
            self.armed = self.armed | {deed}
        if resets:
            self.episode += 1
            self.most += 1
            self.armed = self.armed | {Deed.STEP}

    def begin_anew(self) -> None:
        """Counts that the env is another one, in another process, whose first episode nobody has seen."""
        self.episode, self.count, self.is_certain, self.armed, self.pid = 0, 0, False, {Deed.STEP}, None

    def may_be_another(self) -> None:
        """Counts that the env may be another one by now, in another process."""
        self.episode, self.is_certain = 0, False
        self.armed = self.armed | {Deed.STEP}

    def check(self, observation: npt.NDArray[np.float64], deed: Deed = Deed.STEP) -> None:
        """Compares what was observed."""
        if not self.is_certain and self.count == 0:
            episode = int(observation[2])
            if not 1 <= episode <= self.most:
                raise Wrong(f"env {self.row}: got episode {episode}, expected one of {self.most}")
            self.episode, self.pid, self.is_certain = episode, int(observation[1]), True
        if self.pid is None:
            self.pid = int(observation[1])
        payload = np.nan if deed == Deed.NAN else float(deed)
        expected = np.array([self.row, self.pid, self.episode, self.count, payload])
        if not np.array_equal(observation, expected, equal_nan=True):
            raise Wrong(f"env {self.row}: got {observation.tolist()}, expected {expected.tolist()}")
        self.shown = expected

    def check_step(self, made: Made, deed: Deed) -> None:
        """Compares what a step gave."""
        self.check(made.observation, deed)
        step = (reward_of(self.row, self.episode, self.count), self.is_at_end, False)
        if made.step != step:
            raise Wrong(f"env {self.row}: got reward and flags {made.step}, expected {step}")
        if made.info is not None and made.info.get("count") != self.count:
            raise Wrong(f"env {self.row}: got the info {made.info}, expected count {self.count}")
        if made.info is not None and deed == Deed.HUGE_INFO:
            huge = made.info["huge"]
            if huge.shape != (HUGE,) or not (huge == self.row).all():
                raise Wrong(f"env {self.row}: got a huge info of shape {huge.shape}")

    @property
    def is_at_end(self) -> bool:
        return self.count >= length_of(self.row, self.episode)


def left_behind() -> dict[str, Any]:
    """What this process has that engines come and go with; names, which others may have too, as sets."""
    gc.collect()
    multiprocessing.active_children()  # reaps those of its own that have ended
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing
            continue
        links.append(target.partition(":")[0] if target.startswith(("pipe:", "socket:")) else target)
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": sorted(links),
        "mappings": maps.count("gymbridge") + maps.count("/dev/shm") + maps.count("psm_"),
        "names in /dev/shm": {name for name in os.listdir("/dev/shm") if name.startswith("psm_")},
        "files": {name for name in os.listdir(os.environ.get("TMPDIR", "/tmp")) if name.startswith("gymbridge-")},
    }


class ChaosProgram:
    """One front, for some rounds.

    Args:
        seed: of all that is drawn.
        front: the class.
        folder: empty; for the envs' FIFOs.
        counts: of faults; written to.
    """

    def __init__(self, seed: str, front: type[Front], folder: Path, counts: Counts):
        self.draw = random.Random(seed)
        self.counts = counts
        self.folder = folder
        self.front = front(self.draw, self.draw.randint(2, 4), folder)
        self.rows = [*range(self.front.num_envs)]
        self.now: dict[int, Expected] = {}
        self.underway: dict[int, tuple[str, Deed, bool]] = {}
        self.number = 0
        self.may_be_dead: dict[int, int] = {}
        """Row -> the round in which its process may have died latest, until that is known."""
        self.has_interrupted = threading.Event()
        self.has_ever_interrupted = False
        self.is_over = threading.Event()
        self.exit_codes: dict[int, set[int]] = {}
        self.watched: dict[int, int] = {}
        self.fifos: dict[str, int] = {}
        self.say(f"GYMBRIDGE_CHAOS_SEED={seed} {self.front}")

    def say(self, text: str) -> None:
        print(text, flush=True)

    @contextmanager
    def within(self, what: str, seconds: float = SECONDS) -> Iterator[None]:
        """Refuses a call that took too long."""
        begin = monotonic()
        yield
        took = monotonic() - begin
        if took > SLACK * seconds:
            raise Wrong(f"{what}: took {took:.1f} s, expected {seconds:.1f} s, {SLACK:.0f} times that at most")

    # ---------------------------------------------------------------- start and end

    def run(self, rounds: int) -> None:
        """Starts the front as often as it dies, and closes it at the end; then nothing of it may be left."""
        begin = monotonic()
        for row in self.rows:
            for name in (f"hanging-{row}", f"gate-{row}"):
                os.mkfifo(self.folder / name)
                self.fifos[name] = os.open(self.folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self.front.start()  # what stays for later ones, such as the process that starts workers, is there from now on
        self.front.close()
        self.front.env = None  # type: ignore[attr-defined]
        threads = {*threading.enumerate()}
        before = left_behind()
        handler = signal.signal(signal.SIGINT, self.interrupt)
        try:
            left = rounds
            while left > 0:
                self.start()
                lives = min(left, self.draw.randint(rounds // 2, rounds))
                try:
                    for _ in range(lives):
                        left -= 1
                        self.round()
                        if all(own.state == "dead" for own in self.now.values()) or (
                            self.is_anybody_dead and (not self.front.steps_some or self.draw.random() < 0.3)
                        ):
                            break
                finally:
                    self.close(quietly=sys.exc_info()[0] is not None)
                self.require_nothing_left(before, threads)
        except BaseException:
            self.say(traceback.format_exc())
            raise
        finally:
            signal.signal(signal.SIGINT, handler)
            for descriptor in self.fifos.values():
                os.close(descriptor)
        self.say(f"done after {monotonic() - begin:.1f} s")

    def interrupt(self, *_: Any) -> None:
        """Has an interrupt come where it may, which is within a call."""
        if self.front.is_in_call and not self.has_interrupted.is_set():
            self.has_interrupted.set()
            raise KeyboardInterrupt

    @property
    def is_anybody_dead(self) -> bool:
        return any(own.state == "dead" for own in self.now.values())

    def start(self) -> None:
        self.now = {row: Expected(row) for row in self.rows}
        self.underway, self.exit_codes, self.may_be_dead = {}, {}, {}
        while self.draw.random() < 0.15:
            self.fail_to_start(self.draw.choice([*WHILE_MADE]))
        self.say("start")
        with self.within("start", START_SECONDS):
            self.front.start()

    def fail_to_start(self, fault: str) -> None:
        """A start in which an env raises or ends its process while it is made; the next is as if it had not been."""
        if self.front.must_outlive and fault in OF_PROCESSES:
            return
        row = self.draw.choice(self.rows)
        self.say(f"start with {fault}: env {row}")
        self.counts[fault, "tried"] += 1
        note = self.folder / f"{WHILE_MADE[fault]}-{row}"
        note.touch()
        with self.within("start", START_SECONDS):
            try:
                self.front.start()
            except Exception as error:
                if fault == "os._exit while made":
                    expected = isinstance(error, WorkerDiedError) and error.exit_code == 4 and row in error.env_indices
                else:
                    expected = type(error) is LookupError and error.env_index == row  # type: ignore[attr-defined]
                if not expected:
                    raise Wrong(f"got {error!r}, expected that of env {row}") from error
            else:
                raise Wrong("started, though an env cannot be made")
        note.unlink()
        self.counts[fault, "survived"] += 1

    def close(self, quietly: bool) -> None:
        """Closes the front; what its envs are to do then is an error, or none."""
        for row, (verb, deed, resets) in self.underway.items():  # a pool's that nobody has received
            self.now[row].lose(deed, verb == "reset" or resets)
            if deed == Deed.HANG:
                os.write(self.fifos[f"gate-{row}"], b"g")
        living = [own for own in self.now.values() if own.state != "dead"]
        raising = [own.row for own in living if Deed.ARM_RAISE_IN_CLOSE in own.armed]
        exiting = [own.row for own in living if Deed.ARM_EXIT_IN_CLOSE in own.armed]
        self.say(f"close: {raising} raise, {exiting} exit")
        error: Exception | None = None
        with self.within("close", START_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")  # that workers were killed
            try:
                self.front.close()
            except Exception as raised:
                error = raised
        if quietly:
            return
        if error is not None and (type(error) is not OSError or not raising):
            raise Wrong(f"close: got {error!r}, expected {'OSError' if raising else 'no error'}") from error
        uncertain = exiting or self.is_anybody_dead or self.may_be_dead or not all(own.is_certain for own in living)
        uncertain = uncertain or all(len(self.now[row].armed) > 1 for row in raising)
        if error is None and raising and not uncertain:
            raise Wrong(f"close: no error, expected that of envs {raising}")
        for fault, rows in (("env raises in close", raising), ("os._exit in close", exiting)):
            self.counts[fault, "survived"] += len(rows)

    def require_nothing_left(self, before: Mapping[str, Any], threads: set[threading.Thread]) -> None:
        """No process, thread, descriptor, name, file or mapping."""
        running = still_running(self.watched)
        self.watched = {}
        if running:
            raise Wrong(f"processes {running} still run")
        for thread in {*threading.enumerate()} - threads:
            if (
                "asyncio" in thread.name or "ThreadPool" in thread.name
            ):  # of `asyncio.to_thread`, for the envs of a test
                continue
            thread.join(PATIENCE)
            if thread.is_alive():
                raise Wrong(f"{thread} still runs")
        self.front.env = None  # type: ignore[attr-defined]
        deadline = monotonic() + PATIENCE / 6
        while True:
            after = left_behind()
            differences = {
                name: (before[name], after[name])
                for name in before
                if not (after[name] <= before[name] if isinstance(after[name], set) else after[name] == before[name])
            }
            if not differences:
                return
            if monotonic() > deadline:
                raise Wrong(f"left behind: {differences}")

    # ---------------------------------------------------------------- rounds

    def round(self) -> None:
        """One reset or step, with faults or without."""
        self.number += 1
        idle = [row for row in self.rows if row not in self.front.busy]
        living = [row for row in idle if self.now[row].state != "dead"]
        to_reset = [row for row in living if self.must_be_reset(row)]
        is_new = any(self.now[row].state == "new" for row in to_reset)
        if to_reset and (is_new or not self.front.steps_some or self.draw.random() < 0.7):
            if self.front.steps_some and not is_new and self.draw.random() < 0.3:
                to_reset = self.draw.sample(to_reset, self.draw.randint(1, len(to_reset)))
            self.reset(to_reset)
            return
        ready = [row for row in living if not self.must_be_reset(row)]
        if not ready or self.draw.random() < 0.08:
            if living:
                self.reset(living)
            return
        if self.front.steps_some and self.draw.random() < 0.4:
            ready = sorted(self.draw.sample(ready, self.draw.randint(1, len(ready))))
        elif not self.front.steps_some:
            ready = self.rows
        self.step(ready)

    def must_be_reset(self, row: int) -> bool:
        state = self.now[row].state
        return state in ("new", "failed") or (state == "ended" and not self.front.resets_ended_rows_in_steps)

    def reset(self, rows: Sequence[int]) -> None:
        self.say(f"reset {[*rows]}")
        for row in rows:
            self.send_to(row, "reset", Deed.STEP, False)
        with self.within("reset"):
            done = self.front.reset(rows)
        self.take(done, set())

    def step(self, rows: Sequence[int]) -> None:
        """Steps rows, one of which may have a fault."""
        fault, victim, deeds = None, -1, dict.fromkeys(rows, Deed.STEP)
        stepped = [row for row in rows if self.now[row].state == "running"]
        if stepped and self.draw.random() < 0.45:
            fault, victim = self.draw.choice(self.faults()), self.draw.choice(stepped)
            if fault in RARE and self.draw.random() < 0.8:
                fault = "env raises"
        if fault in IN_STEPS:
            (deeds[victim],) = IN_STEPS[fault]
        resets = self.draw.random() < 0.5
        busy = f", {sorted(self.front.busy)} busy" if self.front.busy else ""
        told = f", {fault}: env {victim}" if fault else ""
        self.say(f"step {[*rows]}{busy}{' or reset' if resets else ''}{told}")
        killed: set[int] = set()
        by_hand: Callable[[], None] | None = None
        if fault is not None:
            self.counts[fault, "tried"] += 1
            pid = self.now[victim].pid
            if fault == "kill -9 before a call":
                assert pid is not None
                signal_worker(pid, signal.SIGKILL)
                killed = self.rows_beside(victim)
                self.exit_codes.setdefault(victim, set()).add(-signal.SIGKILL)
            elif fault == OVER_TIME:
                deeds[victim] = Deed.HANG
                killed = self.rows_beside(victim)
                self.exit_codes.setdefault(victim, set()).add(-signal.SIGKILL)
            elif fault in BY_HAND:
                by_hand = self.by_hand(fault, victim)
                if fault != "stop and continue":
                    deeds[victim] = Deed.HANG
                if fault == "kill -9 in a call":
                    killed = self.rows_beside(victim)
                    self.exit_codes.setdefault(victim, set()).add(-signal.SIGKILL)
        for row in rows:
            ended = self.now[row].state == "ended"
            self.send_to(row, "reset" if ended else "step", deeds[row], self.front.resets_itself(resets))
        if victim >= 0:  # nobody may have looked for what an earlier hang said, or it may not have been let go on
            for name in (f"hanging-{victim}", f"gate-{victim}"):
                with suppress(BlockingIOError):
                    os.read(self.fifos[name], 99)
        thread = None if by_hand is None else threading.Thread(target=by_hand, name="by hand")
        self.has_interrupted.clear()
        self.is_over.clear()
        if thread is not None:
            thread.start()
        with self.within("step"):
            try:
                done = self.front.step(deeds, resets)
            finally:
                self.is_over.set()
                if thread is not None:
                    self.join(thread)
        if fault == OVER_TIME and victim not in self.front.busy and self.has_hung(victim):
            told = [error for error in done.errors.values() if isinstance(error, WorkerTimeoutError)]
            if not self.front.restarts and not told:
                raise Wrong(f"got {done.errors}, expected a WorkerTimeoutError of env {victim}")
        self.take(done, killed, interrupts=fault == "interrupt")
        if fault is not None and deeds[victim] < Deed.ARM_RAISE_IN_RESET:
            self.counts[fault, "survived"] += 1

    def send_to(self, row: int, verb: str, deed: Deed, resets: bool) -> None:
        self.underway[row] = (verb, deed, resets)
        self.now[row].sent = self.number

    def join(self, thread: threading.Thread) -> None:
        thread.join(PATIENCE)
        if thread.is_alive():
            raise Wrong("an env that was to hang never did")

    def faults(self) -> list[str]:
        """Those that this front may have."""
        names = [*IN_STEPS, *BY_HAND]
        if self.front.step_timeout:  # what takes long by chance must not be taken for a hang
            names = [name for name in names if name not in ("hang", "stop and continue", *RARE)]
            names.append(OVER_TIME)
        if self.front.must_outlive:
            names = [name for name in names if name not in OF_PROCESSES]
        if not self.front.has_infos:
            names = [name for name in names if "info" not in name]
        if self.front.shares_thread:
            names.remove("hang")  # nobody could see it but the caller that hangs
        return names

    def by_hand(self, fault: str, row: int) -> Callable[[], None]:
        """What another thread does while the call is under way."""
        pid = self.now[row].pid
        assert pid is not None
        if fault == "stop and continue":
            signal_worker(pid, signal.SIGSTOP)
            return lambda: signal_worker(pid, signal.SIGCONT)
        main = threading.main_thread().ident
        assert main is not None
        waits_in_env = self.front.shares_thread and pid == os.getpid()

        def once_it_hangs() -> None:
            poll = select.poll()
            poll.register(self.fifos[f"hanging-{row}"], select.POLLIN)
            patience = 50
            while not poll.poll(100):
                if self.is_over.is_set():
                    patience -= 1 if row in self.front.busy else 50  # nobody has waited for it yet
                    if patience <= 0:  # it never hung: its worker had died before
                        return
            os.read(self.fifos[f"hanging-{row}"], 1)
            if fault == "kill -9 in a call":
                signal_worker(pid, signal.SIGKILL)
                return
            if fault == "interrupt":
                while not self.is_over.is_set():  # not everyone waits for an env that hangs
                    signal.pthread_kill(main, signal.SIGINT)
                    if self.has_interrupted.wait(0.01):
                        break
                if waits_in_env:
                    return
            os.write(self.fifos[f"gate-{row}"], b"g")

        return once_it_hangs

    def rows_of_process(self, row: int) -> set[int]:
        pid = self.now[row].pid
        return {other.row for other in self.now.values() if other.pid == pid and pid is not None}

    def rows_beside(self, row: int) -> set[int]:
        """The rows that may die with one: those of its process, and those that may be in another than is known."""
        unheard = {other.row for other in self.now.values() if other.pid is None}
        return {row} | self.rows_of_process(row) | unheard | self.may_be_dead.keys()

    # ---------------------------------------------------------------- what came of it

    def take(self, done: Round, killed: set[int], interrupts: bool = False) -> None:
        """Compares what has come with what is expected, and remembers how each env stands."""
        waiting = self.front.busy
        self.has_ever_interrupted |= interrupts
        deaths = self.deaths(done)
        self.may_be_dead.update(dict.fromkeys(killed | deaths, self.number))
        if done.interrupted:
            if not interrupts:
                raise Wrong("interrupted, though nobody did that")
            done.lost = {*self.underway}
        if self.has_ever_interrupted:
            done.lost |= {row for row, error in done.errors.items() if LOST in str(error)}
        for row in done.made:  # before deaths, which are told of whole processes
            self.take_made(row, done.made[row])
        for row in [*self.underway]:
            own = self.now[row]
            if row in done.lost:
                verb, deed, resets = self.underway.pop(row)
                own.lose(deed, verb == "reset" or resets)
                own.state = "failed" if own.state != "dead" else "dead"
            elif row in done.errors:
                self.take_error(row, done.errors[row])
            elif row not in waiting:
                self.take_refusal(row, done)
        for row in self.rows:
            pid = self.now[row].pid
            if pid not in (None, os.getpid()) and pid not in self.watched and self.now[row].state != "dead":
                try:
                    self.watched.update(watch([pid]))  # type: ignore[list-item]
                except ProcessLookupError:  # dead, which nobody has been told yet
                    continue

    def deaths(self, done: Round) -> set[int]:
        """The envs of all processes that something in this round ends."""
        ends: set[int] = set()
        for row, (verb, deed, resets) in self.underway.items():
            own = self.now[row]
            will_reset = verb == "reset" or (resets and own.count + 1 >= length_of(row, own.episode))
            armed = {deed} if deed in AFTER_RESET else own.armed
            has_limit = self.front.step_timeout and deed == Deed.HANG
            if (verb == "step" and (deed in DEADLY or has_limit)) or (will_reset and Deed.ARM_EXIT_IN_RESET in armed):
                ends |= self.rows_beside(row)
                codes = {-signal.SIGKILL if has_limit else DEADLY.get(deed, 5) if verb == "step" else 5}
                self.exit_codes[row] = self.exit_codes.get(row, set()) | codes
        return ends

    def take_made(self, row: int, made: Made) -> None:
        own = self.now[row]
        verb, deed, resets = self.underway.pop(row)
        was_dead = own.state == "dead"
        try:
            self.compare_made(own, made, verb, deed, resets)
        finally:
            own.state = "dead" if was_dead else own.state
        if self.may_be_dead.get(row, self.number) < own.sent:  # its process, or that in its place, lived since
            del self.may_be_dead[row]

    def compare_made(self, own: Expected, made: Made, verb: str, deed: Deed, resets: bool) -> None:
        row = own.row
        if self.front.restarts and made.step is not None and made.step[1:] == (False, True):
            self.take_restart(own, made)
            return
        if verb == "reset":
            if self.front.restarts and row in self.may_be_dead:
                own.may_be_another()
            if Deed.STEP not in own.reset():
                raise Wrong(f"env {row}: was reset, though that should have failed")
            own.check(made.observation)
            own.state = "running"
            return
        fails = deed not in HARMLESS and deed != Deed.HANG and deed < Deed.ARM_RAISE_IN_RESET
        if fails and not self.is_in_place(deed):
            raise Wrong(f"env {row}: got {made}, expected the error of {deed.name}")
        own.step(deed)
        own.check_step(made, deed)
        own.state = "ended" if own.is_at_end else "running"
        if resets and own.is_at_end:
            if self.front.restarts and row in self.may_be_dead:  # its reset was done again
                own.may_be_another()
            if Deed.STEP not in own.reset():
                raise Wrong(f"env {row}: was reset, though that should have failed")
            if made.root is None:
                raise Wrong(f"env {row}: no root after its end")
            own.check(made.root)
            own.state = "running"
        elif made.root is not None:
            raise Wrong(f"env {row}: was reset in the middle of an episode")

    def take_restart(self, own: Expected, made: Made) -> None:
        """An env that comes back in another process, whose interrupted transition is truncated."""
        if own.row not in self.may_be_dead:
            raise Wrong(f"env {own.row}: was restarted, though its worker did not die")
        if made.step != (0.0, False, True):
            raise Wrong(f"env {own.row}: got reward and flags {made.step} of a transition that was lost")
        if own.shown is not None and not np.array_equal(made.observation, own.shown, equal_nan=True):
            raise Wrong(f"env {own.row}: got {made.observation.tolist()}, expected what it showed last, {own.shown}")
        own.begin_anew()
        own.state = "ended"
        if made.root is not None:
            own.reset()
            own.check(made.root)
            own.state = "running"

    def take_error(self, row: int, error: BaseException) -> None:
        own = self.now[row]
        verb, deed, resets = self.underway.pop(row)
        if isinstance(error, WorkerDiedError):
            if row not in self.may_be_dead:
                if self.front.tells_first_error and row not in error.env_indices:
                    self.fail(row, verb, deed, resets, error)
                    return
                raise Wrong(f"env {row}: its worker died of nothing: {error}") from error
            self.take_death(error)
            return
        is_its_own = not self.front.tells_first_error or getattr(error, "env_index", row) == row
        if row in self.may_be_dead and not is_its_own:
            own.lose(deed, verb == "reset" or resets)
            own.state = "failed"  # or dead, as the next call tells
            return
        failed_of = self.fail(row, verb, deed, resets, error)
        if is_its_own:
            self.require_error(row, error, failed_of)

    def fail(self, row: int, verb: str, deed: Deed, resets: bool, error: BaseException) -> set[Deed]:
        """Counts what an env did before it failed; the deeds of which it may have done so."""
        own = self.now[row]
        if verb == "reset":
            failed_of = own.reset()
        else:
            own.step(deed)
            failed_of = {deed}
            if resets and own.is_at_end:
                if deed not in FAILING or self.is_in_place(deed):
                    failed_of = own.reset()
                elif deed not in RAISING:  # it may be reset before what it gave is looked at
                    own.lose(Deed.STEP, resets)
                own.is_certain &= deed in (*RAISING, Deed.STEP)
        own.state = "failed"
        if not failed_of & {*FAILING, Deed.ARM_RAISE_IN_RESET} and own.is_certain:
            raise Wrong(f"env {row}: got {error!r} after {failed_of}") from error
        if failed_of == {Deed.ARM_RAISE_IN_RESET}:
            self.counts["env raises in reset", "survived"] += 1
        return failed_of

    def has_hung(self, row: int) -> bool:
        """Whether an env that was to hang did; its step reached none where its worker had died before."""
        try:
            return bool(os.read(self.fifos[f"hanging-{row}"], 1))
        except BlockingIOError:
            if row not in self.may_be_dead:
                raise Wrong(f"env {row}: was to hang and never did") from None
            return False

    def is_in_place(self, deed: Deed) -> bool:
        """Whether an info that cannot be pickled goes nowhere where that would be in the way."""
        return deed == Deed.UNPICKLABLE_INFO and (self.front.in_process or not self.front.has_infos)

    def require_error(self, row: int, error: BaseException, deeds: set[Deed]) -> None:
        """Refuses an error that is not the one of what an env may have done."""
        text = str(error)
        kinds: dict[Deed, bool] = {
            Deed.RAISE: type(error) is LookupError and error.args == ("broken", row),
            Deed.RAISE_UNSENDABLE: isinstance(error, Unsendable if self.front.in_process else RemoteEnvError)
            and f"env {row} has a lock" in text,
            Deed.UNPICKLABLE_INFO: isinstance(error, UnpicklableError) and "lock" in text,
            Deed.WRONG_SHAPE: all(part in text for part in ("observation", "got", "expected", "3")),
            Deed.WRONG_DTYPE: all(part in text for part in ("observation", "got", "expected", "float64")),
            Deed.ARM_RAISE_IN_RESET: type(error) is LookupError and error.args == ("no reset", row),
        }
        if not any(kinds.get(deed, False) for deed in deeds):
            raise Wrong(f"env {row}: got {error!r} after {deeds}") from error
        if (
            deeds <= {Deed.WRONG_SHAPE, Deed.WRONG_DTYPE}
            and isinstance(error, EnvOutputError)
            and f"env {row}" not in text
        ):
            raise Wrong(f"env {row}: the error does not name it: {error!r}") from error

    def take_death(self, error: WorkerDiedError) -> None:
        """All envs of the process are dead, and the error names them and how it ended."""
        expected = {row for row in self.rows if any(row in self.rows_of_process(each) for each in error.env_indices)}
        unheard = {row for row in self.rows if self.now[row].pid is None}  # of which nobody knows the process yet
        if expected and {*error.env_indices} - unheard != expected:
            raise Wrong(f"got {error}, expected envs {sorted(expected)}")
        codes = {code for row in error.env_indices for code in self.exit_codes.get(row, ())}
        if isinstance(error, WorkerTimeoutError) and codes:  # it was asked where it hangs, and killed if it did not say
            codes |= {-signal.SIGABRT, -signal.SIGKILL}
        if error.exit_code not in codes:
            raise Wrong(f"got {error}, expected one of the exit codes {codes}")
        for row in error.env_indices:
            if error.exit_code == 5 and self.now[row].state != "dead":
                self.counts["os._exit in reset", "survived"] += 5 in self.exit_codes.get(row, ())
            self.now[row].state = "dead"

    def take_refusal(self, row: int, done: Round) -> None:
        """What an env was to do has not begun."""
        self.underway.pop(row)
        if not isinstance(done.refused, WorkerDiedError):
            raise Wrong(f"env {row}: nothing came, and {done.refused!r} was raised") from done.refused
        self.take_death(done.refused)


def signal_worker(pid: int, number: int) -> None:
    """Sends a signal to a worker, which may have died of another fault."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def children() -> set[int]:
    """The processes that this one has started."""
    return descendants(dead=True)
