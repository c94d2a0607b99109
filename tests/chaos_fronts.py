"""The fronts that chaos programs drive: each does resets and steps, and tells what each env gave or raised."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from chaos_envs import ChaosGymEnv, Deed
from chaos_tensordict_envs import ChaosTensorDictEnv
from gymnasium.vector import AutoresetMode
from pools import awaiting
from tensordict import TensorDict, TensorDictBase

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.errors import WorkerDiedError
from gymbridge.vector import AsyncVectorEnv, PoolVectorEnv, SyncVectorEnv

__all__ = ["FRONTS", "Front", "Made", "Round"]

STEP_TIMEOUT = 2.0
"""Seconds, where there is a limit: long enough for a machine with much to do."""


@dataclass
class Made:
    """What an env gave.

    Attributes:
        observation: of its reset, or of its step.
        step: reward, terminated and truncated; None of a reset.
        root: the first observation of the next episode, where the call has reset the env after its step.
        info: of gymnasium envs, where the front has it.
    """

    observation: npt.NDArray[np.float64]
    step: tuple[float, bool, bool] | None = None
    root: npt.NDArray[np.float64] | None = None
    info: Mapping[str, Any] | None = None


@dataclass
class Round:
    """What came of a round.

    Attributes:
        made: env -> what it gave.
        errors: env -> what it raised.
        refused: the call raised this before it had begun.
        interrupted: an interrupt has ended the call, whose results nobody sees.
        lost: the envs of a pool whose results an interrupt has cost.
    """

    made: dict[int, Made] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)
    refused: Exception | None = None
    interrupted: bool = False
    lost: set[int] = field(default_factory=set)


class Front(ABC):
    """Some envs behind one of the fronts.

    Args:
        draw: draws its options.
        num_envs: how many envs.
        folder: theirs.

    Attributes:
        options: those that were drawn, as text.
        in_process: the envs live in this process.
        must_outlive: some of them do, so that this process must outlive what they do.
        shares_thread: those are stepped by the thread that calls.
        steps_some: it can step some envs and leave the others alone.
        has_infos: it shows infos.
        tells_first_error: of several envs that fail in a call, the error of the first is raised for all.
        restarts: dead workers are replaced.
        step_timeout: seconds that an env may take; 0 for any.
        is_in_call: a call of gymbridge is under way, in this process's main thread: an interrupt may come.
    """

    in_process = False
    shares_thread = False
    steps_some = True
    has_infos = False
    tells_first_error = True
    restarts = False
    step_timeout = 0.0

    @property
    def must_outlive(self) -> bool:
        return self.in_process

    def __init__(self, draw: random.Random, num_envs: int, folder: Path):
        self.draw = draw
        self.num_envs = num_envs
        self.is_gym = draw.random() < 0.5
        self.folder = folder
        self.chosen: dict[str, Any] = {}
        self.is_in_call = False

    @property
    def makers(self) -> list[Callable[[], Any]]:
        env: Any = ChaosGymEnv if self.is_gym else ChaosTensorDictEnv
        return [lambda index=index, folder=self.folder: env(index, folder) for index in range(self.num_envs)]  # type: ignore[misc]

    def choose_policy(self) -> None:
        """Draws what becomes of dead workers."""
        self.chosen["on_worker_failure"] = self.draw.choice(["raise", "restart"])
        self.restarts = self.chosen["on_worker_failure"] == "restart"
        if self.restarts:
            self.chosen["max_restarts"] = (1000, 1.0)
        if self.draw.random() < 0.25:
            self.step_timeout = self.chosen["step_timeout"] = STEP_TIMEOUT

    def __str__(self) -> str:
        kind = "gymnasium" if self.is_gym else "TensorDict"
        return f"{type(self).__name__}({self.num_envs} {kind} envs, {self.chosen})"

    def call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Makes a call, in which an interrupt may come."""
        self.is_in_call = True
        try:
            return call(*args, **kwargs)
        finally:
            self.is_in_call = False

    @abstractmethod
    def start(self) -> None:
        """Starts the envs."""

    @abstractmethod
    def reset(self, rows: Sequence[int]) -> Round:
        """Resets some envs, or all."""

    @abstractmethod
    def step(self, deeds: Mapping[int, Deed], resets: bool) -> Round:
        """Steps some envs.

        Args:
            deeds: what each does.
            resets: those whose episode ends are reset in the same call.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes them."""

    def resets_itself(self, resets: bool) -> bool:
        """Whether a step resets envs at their end, where ``resets`` was drawn."""
        return resets

    @property
    def resets_ended_rows_in_steps(self) -> bool:
        """Whether an env that has ended is reset by its next step."""
        return False

    @property
    def busy(self) -> set[int]:
        """The envs whose results are still to come."""
        return set()


# ---------------------------------------------------------------- batches of TensorDicts


def rows_of(td: TensorDictBase, key: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = td[key].numpy()
    return array


def made_of(next_td: TensorDictBase, row: int, root: npt.NDArray[Any] | None = None) -> Made:
    reward, terminated, truncated = (rows_of(next_td, key)[row].item() for key in ("reward", "terminated", "truncated"))
    return Made(rows_of(next_td, "observation")[row], (reward, terminated, truncated), root)


class Batch(Front):
    """``SerialEnv`` and ``ParallelEnv``."""

    env: Any

    def mask(self, rows: Iterable[int]) -> torch.Tensor:
        mask = torch.zeros(self.num_envs, dtype=torch.bool)
        mask[[*rows]] = True
        return mask

    def reset(self, rows: Sequence[int]) -> Round:
        given = None if len(rows) == self.num_envs else TensorDict({"_reset": self.mask(rows)}, [self.num_envs])

        def read(td: TensorDictBase, td_: None) -> dict[int, Made]:
            return {row: Made(rows_of(td, "observation")[row]) for row in rows}

        return self.round(lambda: (self.env.reset(given), None), read)

    def step(self, deeds: Mapping[int, Deed], resets: bool) -> Round:
        td = self.env.reset(TensorDict({"_reset": self.mask([])}, [self.num_envs]))  # where each stands
        td["action"] = torch.tensor([int(deeds.get(row, 0)) for row in range(self.num_envs)])
        if len(deeds) < self.num_envs:
            td["_step"] = self.mask(deeds)

        def call() -> tuple[TensorDictBase, TensorDictBase | None]:
            return self.env.step_and_maybe_reset(td) if resets else (self.env.step(td), None)

        def read(td: TensorDictBase, td_: TensorDictBase | None) -> dict[int, Made]:
            roots = rows_of(td_ if td_ is not None else self.where_all_are(), "observation") if resets else None
            ended = rows_of(td["next"], "done")
            return {
                row: made_of(td["next"], row, roots[row] if roots is not None and ended[row].any() else None)
                for row in deeds
            }

        return self.round(call, read)

    def where_all_are(self) -> TensorDictBase:
        td: TensorDictBase = self.env.reset(TensorDict({"_reset": self.mask([])}, [self.num_envs]))
        return td

    def round(self, call: Callable[[], tuple[Any, Any]], read: Callable[[Any, Any], dict[int, Made]]) -> Round:
        before = self.env.last_partial()
        try:
            return Round(read(*self.call(call)))
        except KeyboardInterrupt:
            return Round(interrupted=True)
        except Exception as error:
            partial = self.env.last_partial()
            if partial is before:
                return Round(refused=error)
            failed = rows_of(partial, "_failed").reshape(self.num_envs)
            made = read(partial, None)
            return Round(
                {row: own for row, own in made.items() if not failed[row]},
                dict.fromkeys(np.flatnonzero(failed).tolist(), error),
            )

    def close(self) -> None:
        self.env.close(raise_if_closed=False)


class Serial(Batch):
    in_process = True
    shares_thread = True

    def start(self) -> None:
        self.env = SerialEnv(self.num_envs, self.makers)
        self.env.start()


class Parallel(Batch):
    def __init__(self, draw: random.Random, num_envs: int, folder: Path):
        super().__init__(draw, num_envs, folder)
        self.chosen["num_workers"] = draw.randint(1, num_envs)
        self.chosen["memmap"] = draw.random() < 0.3
        if draw.random() < 0.3:
            self.chosen["use_buffers"] = False
        # workers that send TensorDicts import torch, each for itself then
        if self.is_gym and "use_buffers" not in self.chosen and draw.random() < 0.15:
            self.chosen["mp_start_method"] = draw.choice(["forkserver", "exec"])
        self.choose_policy()

    def start(self) -> None:
        self.env = ParallelEnv(self.num_envs, self.makers, num_threads=torch.get_num_threads(), **self.chosen)
        self.env.start()


class CallerSteps(Parallel):
    """The last of the envs are stepped by the caller."""

    must_outlive = True
    shares_thread = True

    def __init__(self, draw: random.Random, num_envs: int, folder: Path):
        super().__init__(draw, max(2, num_envs), folder)
        self.chosen["caller_steps"] = True
        self.chosen["num_workers"] = draw.randint(1, self.num_envs - 1)
        self.chosen.pop("step_timeout", None)
        self.step_timeout = 0.0


# ---------------------------------------------------------------- vector envs


class Vector(Front):
    """``SyncVectorEnv`` and ``AsyncVectorEnv`` in one of the three modes."""

    env: Any
    steps_some = False
    has_infos = True

    def __init__(self, draw: random.Random, num_envs: int, folder: Path):
        super().__init__(draw, num_envs, folder)
        self.is_gym = True
        self.mode = self.chosen["autoreset_mode"] = draw.choice([*AutoresetMode])

    def resets_itself(self, resets: bool) -> bool:
        return self.mode is AutoresetMode.SAME_STEP

    @property
    def resets_ended_rows_in_steps(self) -> bool:
        return self.mode is AutoresetMode.NEXT_STEP

    def reset(self, rows: Sequence[int]) -> Round:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[[*rows]] = True
        options = None if len(rows) == self.num_envs else {"reset_mask": mask}

        def read(result: tuple[Any, ...]) -> dict[int, Made]:
            return {row: Made(result[0][row]) for row in rows}

        return self.round(lambda: self.in_halves("reset", options=options), read)

    def in_halves(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The call, or its two halves where there are such."""
        if hasattr(self.env, f"{name}_async") and self.draw.random() < 0.3:
            getattr(self.env, f"{name}_async")(*args, **kwargs)
            return getattr(self.env, f"{name}_wait")()
        return getattr(self.env, name)(*args, **kwargs)

    def step(self, deeds: Mapping[int, Deed], resets: bool) -> Round:
        actions = np.array([int(deeds[row]) for row in range(self.num_envs)])

        def read(result: tuple[Any, ...]) -> dict[int, Made]:
            observations, rewards, terminations, truncations, infos = result
            made = {}
            for row in range(self.num_envs):
                observation, root, told = observations[row], None, infos
                if "final_obs" in infos and infos["_final_obs"][row]:
                    observation, root, told = infos["final_obs"][row], observations[row], infos["final_info"]
                step = (float(rewards[row]), bool(terminations[row]), bool(truncations[row]))
                info = {name: told[name][row] for name in told if f"_{name}" in told and told[f"_{name}"][row]}
                made[row] = Made(observation, step, root, info)
            return made

        return self.round(lambda: self.in_halves("step", actions), read)

    def round(self, call: Callable[[], Any], read: Callable[[Any], dict[int, Made]]) -> Round:
        before = self.env.last_partial()
        try:
            return Round(read(self.call(call)))
        except KeyboardInterrupt:
            return Round(interrupted=True)
        except Exception as error:
            partial = self.env.last_partial()
            if partial is before:
                return Round(refused=error)
            failed = partial[-1]["_failed"]
            made = read(partial)
            return Round(
                {row: own for row, own in made.items() if not failed[row]},
                dict.fromkeys(np.flatnonzero(failed).tolist(), error),
            )

    def close(self) -> None:
        self.env.close()


class Sync(Vector):
    in_process = True
    shares_thread = True

    def start(self) -> None:
        self.env = SyncVectorEnv(self.makers, **self.chosen)


class Async(Vector):
    def __init__(self, draw: random.Random, num_envs: int, folder: Path):
        super().__init__(draw, num_envs, folder)
        self.chosen["num_workers"] = draw.randint(1, num_envs)
        self.chosen["shared_memory"] = draw.random() < 0.7
        self.chosen["copy"] = draw.random() < 0.8
        self.choose_policy()

    def start(self) -> None:
        self.env = AsyncVectorEnv(self.makers, **self.chosen)


# ---------------------------------------------------------------- pools


class Pool(Front):
    """``AsyncEnvPool``: some envs in a batch, others in lanes, received bit by bit."""

    env: Any
    tells_first_error = False
    backend = ""
    shown: dict[int, npt.NDArray[np.float64]]
    """What each env goes on from."""

    def start(self) -> None:
        self.shown = {}
        self.env = AsyncEnvPool(self.makers, backend=self.backend, **self.chosen)
        self.env.start()

    def reset(self, rows: Sequence[int]) -> Round:
        return self.send_and_receive("reset", rows, None)

    def step(self, deeds: Mapping[int, Deed], resets: bool) -> Round:
        return self.send_and_receive("step_and_maybe_reset" if resets else "step", [*deeds], deeds)

    def send_and_receive(self, verb: str, rows: Sequence[int], deeds: Mapping[int, Deed] | None) -> Round:
        rows = self.draw.sample([*rows], len(rows))
        at = self.draw.randint(0, len(rows))
        batch, lanes = rows[:at], rows[at:]
        done = Round()
        send: Any = getattr(self.env, f"async_{verb}_send")

        def given(own: Sequence[int], *lead: int) -> TensorDictBase | None:
            if deeds is None:
                return None
            td = TensorDict({"action": torch.tensor([int(deeds[row]) for row in own]).reshape(lead)}, [*lead])
            if not self.is_gym:  # go on from what they are given
                shown = np.stack([self.shown[row] for row in own])
                td["observation"] = torch.from_numpy(shown).reshape(*lead, -1)
            return td

        pending, waiting = set(batch), list[int]()
        try:
            if batch:
                self.call(send, given(batch, len(batch)), batch)
        except Exception as error:
            done.refused = error
            pending = set()
        except KeyboardInterrupt:
            done.lost = pending - {*self.env._calls.busy}
            pending -= done.lost
        for row in lanes:
            try:
                self.call(send, given([row]), row)
                waiting.append(row)
            except Exception as error:
                done.refused = error
            except KeyboardInterrupt:
                (waiting.append if row in {*self.env._calls.busy} else done.lost.add)(row)
        while pending or waiting:
            try:
                if pending and (not waiting or self.draw.random() < 0.5):
                    got = self.receive(verb, self.draw.randint(1, len(pending)), None)
                    self.take(verb, got, pending, done)
                else:
                    got = self.receive(verb, None, waiting[-1])
                    self.take_one(verb, got, waiting.pop(), done)
            except KeyboardInterrupt:
                done.lost |= {*pending, *waiting} - {*self.env._calls.busy}
                pending -= done.lost
                waiting = [row for row in waiting if row not in done.lost]
        return done

    def receive(self, verb: str, least: int | None, lane: int | None) -> Any:
        """What comes, or what is raised."""
        try:
            return self.call(getattr(self.env, f"async_{verb}_recv"), least, lane)
        except Exception as error:
            return error

    def take(self, verb: str, got: Any, pending: set[int], done: Round) -> None:
        if isinstance(got, WorkerDiedError):
            (row,) = pending - {*self.env._calls.busy}  # it names all envs of the process
        elif isinstance(got, Exception):
            if not hasattr(got, "env_index"):
                raise got
            row = got.env_index
        else:
            td, td_ = got if isinstance(got, tuple) else (got, None)
            for place, row in enumerate(rows_of(td, "env_index").tolist()):
                pending.remove(row)
                self.keep(row, self.made(verb, td, td_, place), done)
            return
        pending.remove(row)
        done.errors[row] = got

    def take_one(self, verb: str, got: Any, row: int, done: Round) -> None:
        if isinstance(got, Exception):
            done.errors[row] = got
            return
        td, td_ = (part.unsqueeze(0) for part in got) if isinstance(got, tuple) else (got.unsqueeze(0), None)
        self.keep(row, self.made(verb, td, td_, 0), done)

    def keep(self, row: int, made: Made, done: Round) -> None:
        done.made[row] = made
        self.shown[row] = made.observation if made.root is None else made.root

    def made(self, verb: str, td: TensorDictBase, td_: TensorDictBase | None, place: int) -> Made:
        if verb == "reset":
            return Made(rows_of(td, "observation")[place])
        ended = td_ is not None and rows_of(td["next"], "done")[place].any()
        return made_of(td["next"], place, rows_of(td_, "observation")[place] if ended else None)  # type: ignore[arg-type]

    def close(self) -> None:
        self.env.shutdown()


class ThreadPool(Pool):
    in_process = True
    backend = "threading"


class AsyncioPool(Pool):
    in_process = True
    backend = "asyncio"

    @property
    def makers(self) -> list[Callable[[], Any]]:
        return [awaiting(maker) for maker in super().makers]


class ProcessPool(Pool):
    backend = "multiprocessing"

    def __init__(self, draw: random.Random, num_envs: int, folder: Path):
        super().__init__(draw, num_envs, folder)
        self.chosen["envs_per_worker"] = draw.choice([1, 1, 2, num_envs])
        if not self.is_gym:
            self.chosen["exchange"] = draw.choice(["auto", "shm", "queue"])
        self.choose_policy()


def shown_of(observations: Any) -> Any:
    """The observation in what a vector env shows of an env of either kind."""
    return observations["observation"] if isinstance(observations, dict) else observations


class PoolVector(Front):
    """``PoolVectorEnv`` over a pool of one of the backends."""

    env: Any
    tells_first_error = False

    def __init__(self, draw: random.Random, num_envs: int, folder: Path):
        super().__init__(draw, num_envs, folder)
        kind = draw.choice([ThreadPool, ProcessPool, ProcessPool])
        self.pool: Pool = kind(draw, num_envs, folder)
        self.pool.is_gym = self.is_gym
        if self.is_gym:
            self.pool.chosen.pop("exchange", None)
        self.in_process = self.pool.in_process
        self.restarts = self.pool.restarts
        self.step_timeout = self.pool.step_timeout
        self.mode = draw.choice([*AutoresetMode])
        self.batch_size = draw.randint(1, num_envs)
        self.chosen = {"pool": str(self.pool), "batch_size": self.batch_size, "autoreset_mode": self.mode}
        self.pending: dict[int, bool] = {}
        """Env -> whether it was sent a reset."""

    def resets_itself(self, resets: bool) -> bool:
        return self.mode is AutoresetMode.SAME_STEP

    @property
    def resets_ended_rows_in_steps(self) -> bool:
        return self.mode is AutoresetMode.NEXT_STEP

    @property
    def busy(self) -> set[int]:
        return {*self.pending}

    def start(self) -> None:
        self.pending = {}
        pool = AsyncEnvPool(self.pool.makers, backend=self.pool.backend, **self.pool.chosen)
        try:
            self.env = PoolVectorEnv(pool, self.batch_size, autoreset_mode=self.mode)
        except BaseException:
            pool.close(raise_if_closed=False)
            raise

    def reset(self, rows: Sequence[int]) -> Round:
        return self.round(rows, True, lambda: self.env.async_reset([*rows]))

    def step(self, deeds: Mapping[int, Deed], resets: bool) -> Round:
        return self.round([*deeds], False, lambda: self.env.send(np.array([*map(int, deeds.values())]), [*deeds]))

    def round(self, rows: Sequence[int], is_reset: bool, send: Callable[[], object]) -> Round:
        done = Round()
        try:
            self.call(send)
            self.pending.update(dict.fromkeys(rows, is_reset))
        except Exception as error:
            done.refused = error
        except KeyboardInterrupt:
            sent = {*rows} & {*self.env._pending()}
            self.pending.update(dict.fromkeys(sent, is_reset))
            done.lost = {*rows} - sent
        while len(self.pending) >= self.batch_size:
            try:
                result = self.call(self.env.recv)
            except KeyboardInterrupt:
                done.lost |= {*self.pending} - {*self.env._pending()}
                self.pending = {row: own for row, own in self.pending.items() if row not in done.lost}
            except Exception as error:
                for row in {*self.pending} - {*self.env._pending()}:  # a death names all envs of the process
                    del self.pending[row]
                    done.errors[row] = error
            else:
                self.take(result, done)
        return done

    def take(self, result: tuple[Any, ...], done: Round) -> None:
        observations, rewards, terminations, truncations, infos = result
        for place, row in enumerate(infos["env_id"].tolist()):
            observation, root = shown_of(observations)[place], None
            if "final_obs" in infos and infos["_final_obs"][place]:
                observation, root = shown_of(infos["final_obs"][place]), observation
            step = (float(rewards[place]), bool(terminations[place]), bool(truncations[place]))
            done.made[row] = Made(observation, None if self.pending.pop(row) else step, root)

    def close(self) -> None:
        self.env.close()


FRONTS: dict[str, type[Front]] = {
    "serial": Serial,
    "parallel": Parallel,
    "caller-steps": CallerSteps,
    "sync-vector": Sync,
    "async-vector": Async,
    "pool-threads": ThreadPool,
    "pool-asyncio": AsyncioPool,
    "pool-processes": ProcessPool,
    "pool-vector": PoolVector,
}
