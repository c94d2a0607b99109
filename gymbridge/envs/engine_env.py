"""An env over an engine: what ``GymEnv`` and the batched envs share."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.host import Engine
from gymbridge.engine.work_counts import EngineStats
from gymbridge.envs.base import EnvBase
from gymbridge.envs.done_groups import DoneGroups
from gymbridge.envs.engine_face import EngineFace
from gymbridge.envs.env_kind import EnvKind
from gymbridge.envs.inputs import DeviceLike, as_seed, env_device
from gymbridge.envs.seed_chain import SeedChain, common_chain
from gymbridge.envs.tensordicts import entry
from gymbridge.envs.transitions import put_next
from gymbridge.specs import Composite

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EngineEnv", "kept_generator"]


class EngineEnv(OneCallAtATime, EnvBase):
    """An env whose resets and steps are rounds of an engine.

    A subclass writes ``_make_face``, which makes the engine; it is called at the first use.
    """

    _partial_step = _partial_reset = True
    _engine_face: EngineFace | None = None
    _seeds: tuple[list[int | None], bool] | None = None
    """Seeds that wait for the start, one a row, and whether they are static."""
    _seeds_given: tuple[list[int | None], bool] | None = None
    """The seeds that the envs which run were given last."""
    _seed_chains: Sequence[SeedChain | None] = (None,)
    """Those of the envs that run or ran last, one a row."""
    _is_counted = False
    """Somebody has asked for ``stats``."""
    _ended_counts: EngineStats | None = None
    """What was counted of the envs that ran last."""
    _is_starting = False
    _start_error: AttributeError | None = None
    """What the last start raised, if it was one that Python takes for a missing attribute of the env."""

    @abstractmethod
    def _make_face(self) -> EngineFace:
        """Starts the engine and gives its TensorDict face."""

    @property
    def _face(self) -> EngineFace:
        """The face; starts the engine if it is not running.

        Raises:
            RuntimeError: a start is under way, in this thread or another.
        """
        if self._engine_face is None:
            self._require_open("start")
            if self._is_starting:
                raise RuntimeError("start: refused while a start is under way, in this thread or another")
            self._is_starting = True
            self._start_error = None
            try:
                self._engine_face = self._make_face()
                self._take_specs(self._engine_face)
                if self._is_counted:
                    self._engine_face.engine.stats()
            except AttributeError as error:
                self._start_error = error
                raise
            finally:
                self._is_starting = False
            if self._seeds is not None:
                seeds, static_seed = self._seeds
                self._seeds = None
                self._give_seeds(seeds, static_seed)
        return self._engine_face

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What the envs' workers have done, and where their time has gone, since this was first called.

        Nothing is counted before, and nothing costs anything. The first call begins: it gives zeros, or before the envs
        have been started has them counted from the start. It may be called in any thread, while steps are under way
        too. After ``close`` it gives what was counted last; envs that are started again count from zero.

        Args:
            reset: count from zero again. What is under way then counts where it ends.

        Returns:
            A dict of ``"workers"``, a list with a dict for each worker: of a ``ParallelEnv`` a process, and a caller
            who steps envs too as the last; of a pool an env; of others one, the caller itself. In it

            - ``steps``: how many steps of envs it has made; of an env that is a batch of its own, one a call. Those
              that raised are counted, those in which a worker died or an env was given up are not;
            - ``step_s``: seconds in steps and resets of the envs, whatever these do there;
            - ``copy_s``: the other seconds in which it had work: reading what the envs are given, checking what they
              give, and copying it to where the caller finds it. In a pool whose envs run in this process that is the
              caller's time, shared equally by the envs that it concerns;
            - ``wait_s``: the seconds without work. Of the caller itself: those in which nobody has stepped or reset.

            ``"seconds"``: the time of all this, which ``wait_s``, ``step_s`` and ``copy_s`` add up to where nothing is
            under way. ``"restarts"``: how often a worker was replaced, ``"restarts_of"``, the same for each that was,
            by its number, and ``"timeouts"``: how many were ended since an env took too long; these three count from
            the start on.

        Example:
            >>> from gymbridge import SerialEnv
            >>> env = SerialEnv(4, "CartPole-v1")
            >>> _ = env.stats()
            >>> _ = env.rollout(10, break_when_any_done=False)
            >>> (caller,) = env.stats()["workers"]
            >>> caller["steps"], caller["step_s"] > 0
            (40, True)
            >>> env.close()
        """
        self._is_counted = True  # before the look: a start under way in another thread sees it
        face, ended = self._engine_face, self._ended_counts
        if face is not None:
            counts: dict[str, Any] = face.engine.stats(reset=reset)
            return counts
        return (EngineStats(self._num_counted) if ended is None else ended).taken(reset=reset)

    @property
    def _num_counted(self) -> int:
        """How many workers there will be."""
        return 1

    @property
    def engine(self) -> Engine[Any]:
        """The engine that runs the envs; starts it if it is not running."""
        return self._face.engine

    def _take_specs(self, face: EngineFace) -> None:
        self.set_spec_lock_(False)
        self._batch_size = face.batch_size
        for kind, spec in face.specs.items():
            self._store_spec(kind, spec)
        self.set_spec_lock_()
        specs = [getattr(env, "specs", None) for env in face.engine.descriptions]
        self._seed_chains = [None if own is None else own.seed_chain for own in specs]

    def _spec_of(self, kind: str) -> Composite:
        if self._engine_face is None and not self._has_specs:
            _ = self._face
        return super()._spec_of(kind)

    @property
    def _has_specs(self) -> bool:
        """Whether the engine ever ran, so that the specs are known."""
        return "observation" in self._specs

    # ---------------------------------------------------------------- reset and step

    @exclusive
    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """See :meth:`EnvBase.reset`; ``kwargs`` go to the reset of each env: ``options``, and ``seed`` of a single env.

        A batch also takes ``list_of_kwargs``, one dict an env; those of envs that are not reset are ignored, and what
        is given for all wins over them.

        Raises:
            ValueError: a ``seed`` for a batch, whose envs would all be the same: that is for :meth:`set_seed`.
        """
        self._require_open("reset")
        _ = self._engine_face or self._face
        return super().reset(tensordict, **kwargs)

    @exclusive
    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See :meth:`EnvBase.step`."""
        if self._engine_face is None:
            self._require_open("step")
            _ = self._face
        return super().step(tensordict)

    @exclusive
    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """See :meth:`EnvBase.step_and_maybe_reset`; one round of the engine."""
        if self._engine_face is None:
            self._require_open("step_and_maybe_reset")
            _ = self._face
        return super().step_and_maybe_reset(tensordict)

    @exclusive
    def step_or_reset(self, tensordict: TensorDictBase, resets: torch.Tensor) -> TensorDictBase:
        """Resets the envs of a batch that a mask picks and steps the others, in one round of the engine.

        Args:
            tensordict: has the actions; those of the envs that are reset may be anything. It stays as it is.
            resets: a CPU bool tensor ``[N]``.

        Returns:
            What each env shows then: observation, infos, reward (zero after a reset) and flags (False after one).

        Raises:
            What :meth:`step` raises.
        """
        self._require_open("step_or_reset")
        face = self._engine_face or self._face
        self._require_batch_size("step_or_reset", tensordict)
        return face.step_or_reset(tensordict, resets)

    def _first(
        self, tensordict: TensorDictBase | None, mask: torch.Tensor | None, kwargs: dict[str, Any]
    ) -> TensorDictBase:
        if kwargs.get("seed") is not None and self.numel() > 1:
            raise ValueError(
                f"seed: got {kwargs['seed']!r} for a batch, whose {self.numel()} envs would all be the same; call "
                f"set_seed(seed), which gives env i the seed seed + i, and then reset()"
            )
        return self._face.reset(tensordict, mask, self._reset_kwargs(kwargs))

    def _next(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        return self._face.step(tensordict, mask)

    def _advance(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> tuple[TensorDictBase, TensorDictBase]:
        face = self._face
        following, root = face.step_and_maybe_reset(tensordict, mask)
        with_next = face.may_have_extras or entry(tensordict, "next") is not None
        put_next(tensordict, following, face.groups.nested)
        return tensordict, face.carry(tensordict, root, face.concerned(mask), with_next=with_next)

    def _require_steppable(self, mask: torch.Tensor | None) -> None:
        """Refuses a step of an env that has to be reset before, before any is stepped.

        Raises:
            ResetNeeded: naming the envs.
        """
        self._face.require_steppable(mask)

    def _row_groups(self, tensordict: TensorDictBase) -> list[tuple[TensorDictBase, DoneGroups]]:
        face = self._face
        if face.is_dense or not isinstance(tensordict, LazyStackedTensorDict):
            return super()._row_groups(tensordict)
        return [(own, face.row_plan(row).groups) for row, own in enumerate(tensordict.tensordicts)]

    def step_mdp(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """See :meth:`EnvBase.step_mdp`."""
        return self._face.step_mdp(next_tensordict)

    def _ended(self, tensordict: TensorDictBase) -> torch.Tensor:
        return self._face.ended(tensordict)

    def fake_tensordict(self) -> TensorDictBase:
        """See :meth:`EnvBase.fake_tensordict`."""
        return self._face.fake_tensordict()

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        return self._first(tensordict, None, kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._next(tensordict, None)

    def last_partial(self) -> TensorDictBase | None:
        """What the other envs gave in the last call in which an env raised; None if none ever did.

        Where each env stands now, after ends and resets in that call too, is what a ``reset`` shows whose mask picks
        no env.

        Returns:
            The TensorDict that the call would have returned, of ``step_and_maybe_reset`` the first, with ``"_failed"``,
            bool ``[*B]``, true for the envs that raised: their rows are as those of envs that were not stepped.
        """
        return None if self._engine_face is None else self._engine_face.partial

    def _engine_description(self) -> EnvKind:
        return super()._engine_description()._replace(difference=self._face.difference())

    def _inner_envs(self) -> Sequence[Any]:
        return getattr(self.engine, "envs", ())

    def _output_faults(self, num_steps: int, seed: int | None) -> list[str]:
        rows: dict[str, list[int]] = {}
        for row, faults in enumerate(self._face.engine.each("faults", [(num_steps, seed)] * self._num_rows)):
            for fault in faults:
                rows.setdefault(fault, []).append(row)
        return [f"envs {envs}: {fault}" if self.batch_size else fault for fault, envs in rows.items()]

    # ---------------------------------------------------------------- seeds

    @exclusive
    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """See :meth:`EnvBase.set_seed`; of gymnasium envs they are those of ``reset(seed=seed)`` of a vector env.

        Envs that all have the same ``seed_chain`` get the seeds of that, and the next one that is free is its next.
        """
        seed = as_seed(seed)
        num_envs = self.numel()
        if seed is None:
            self._give_seeds([None] * self._num_rows, False)
            return None
        chains, chain = self._seed_chains, self.seed_chain
        seeds, next_seed = [seed] * self._num_rows, seed
        if not static_seed and chain is not None:
            for row, own in enumerate(chains):
                assert own is not None
                seeds[row], next_seed = next_seed, own.after(next_seed)
        elif not static_seed:
            envs_a_row = num_envs // self._num_rows
            seeds, next_seed = [seed + row * envs_a_row for row in range(self._num_rows)], seed + num_envs
        self._give_seeds([*seeds], static_seed)
        torch.manual_seed(seed % 2**64)
        return next_seed

    @property
    def seed_chain(self) -> SeedChain | None:  # type: ignore[override]
        """The chain of seeds that the envs have in common."""
        return common_chain(self._seed_chains)

    @exclusive
    def seed_rows(self, seeds: Sequence[int | None]) -> None:
        """Gives each env a seed of its own, or None for none, for its next reset; torch is not seeded.

        Raises:
            TypeError, ValueError: a seed that is no int, a negative one, or another number of seeds than envs.
        """
        if len(seeds) != self._num_rows:
            raise ValueError(f"seeds: got {len(seeds)}, expected {self._num_rows}, one for each env")
        self._give_seeds([as_seed(seed) for seed in seeds], False)

    def _give_seeds(self, seeds: list[int | None], static_seed: bool) -> None:
        """Hands seeds to the envs; they wait for the start if there is none yet."""
        if self._engine_face is None:
            self._seeds = (seeds, static_seed)
            return
        self._seeds_given = (seeds, static_seed)
        with kept_generator():  # an env of the user's may seed torch, each with its own
            self._engine_face.engine.each("seed", [(seed, static_seed) for seed in seeds])

    @property
    def _num_rows(self) -> int:
        """Number of envs that the engine runs."""
        return self._batch_size[0] if self._batch_size else 1

    def _set_seed(self, seed: int | None) -> None:
        self.set_seed(seed)

    def _reset_kwargs(self, kwargs: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        """One dict an env: what is its own in ``list_of_kwargs``, and what goes to all."""
        return self._kwargs_for_rows(kwargs, self._num_rows)

    def _kwargs_for_rows(self, kwargs: Mapping[str, Any], num_rows: int) -> list[Mapping[str, Any]] | None:
        """The same for so many envs."""
        if not kwargs:
            return None
        common = dict(kwargs)
        own = common.pop("list_of_kwargs", None) if self._batch_size else None
        if own is None:
            return [_with_dicts_of_its_own(common) for _ in range(num_rows)]
        if not isinstance(own, (list, tuple)) or len(own) != num_rows:
            got = f"a list of {len(own)}" if isinstance(own, (list, tuple)) else repr(own)
            raise ValueError(f"list_of_kwargs: got {got}, expected a list of {num_rows} dicts, one for each env")
        for index, each in enumerate(own):
            if each is not None and not isinstance(each, Mapping):
                raise TypeError(f"list_of_kwargs: got {each!r} for env {index}, expected a dict")
        return [_with_dicts_of_its_own({**(each or {}), **common}) for each in own]

    # ---------------------------------------------------------------- states

    @exclusive
    def state_dict(self) -> dict[str, Any]:
        """The state of the env's ``np_random`` and, where the env has ``get_state`` and ``set_state``, its own.

        A batch has one such dict an env, ``"worker0"`` to ``"worker(N-1)"``. Locks in it are None.
        """
        engine = self._face.engine
        if not self._batch_size:
            return engine.state(0)
        states = engine.each("state", [()] * engine.num_envs)
        return {f"worker{row}": state for row, state in enumerate(states)}

    @exclusive
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave; a batch also takes the dict of one env, for all of them.

        Of what a batch gave a part will do, the states of those envs whose worker was replaced, say: the others stay
        as they are.

        Raises:
            KeyError: not what ``state_dict`` gives.
            TypeError: something that is not a dict.
        """
        engine = self._face.engine
        rows = range(engine.num_envs)
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict: got {state_dict!r}, expected a dict")
        states = {row: deepcopy(state_dict) for row in rows}
        if any(key.startswith("worker") for key in state_dict):
            names = {f"worker{row}": row for row in rows}
            if unknown := state_dict.keys() - names.keys():
                raise KeyError(
                    f"state_dict: got the keys {[*state_dict]}, of which {sorted(unknown)} are none of worker0 to "
                    f"worker{len(rows) - 1}"
                )
            states = {names[name]: state for name, state in state_dict.items()}
        if len(states) == len(rows):
            engine.each("load_state", [(states[row],) for row in rows])
        else:
            for row, state in states.items():
                engine.load_state(row, state)

    # ---------------------------------------------------------------- copies, devices and the end

    def __getstate__(self) -> dict[str, Any]:
        """The configuration, without the engine: what is unpickled starts its own."""
        of_the_moment = {"_engine_face": None, "_latest": None, "_plan": None, "_call_under_way": None}
        not_counted = {"_is_counted": False, "_ended_counts": None}
        not_started = {"_is_starting": False, "_start_error": None, "_seeds_given": None}
        return {**self.__dict__, **of_the_moment, **not_counted, **not_started}

    @exclusive
    def to(self, device: DeviceLike) -> Self:
        """Has the env return everything on a device, from now on; returns the env. The envs go on as they are.

        Where a batch that runs moves, seeds that it was given are given again, for the next reset: a warning says so.
        """
        self._require_movable()
        moves = env_device(device) != self._device
        super().to(device)
        if self._engine_face is not None and moves:
            self._engine_face = self._engine_face.on(env_device(device))
            self._take_specs(self._engine_face)
            if self._batch_size and self._seeds_given is not None:
                seeds, static_seed = self._seeds_given
                warnings.warn(
                    f"to: {type(self).__name__} moves to {self._device}; the seeds {seeds} are given again, for the "
                    f"next reset",
                    stacklevel=3,
                )
                self._give_seeds(seeds, static_seed)
        return self

    def _require_movable(self) -> None:
        """Refuses a move to another device where that cannot be."""

    @exclusive
    def close(self, *, raise_if_closed: bool = True) -> None:
        """See :meth:`EnvBase.close`; the envs are closed too."""
        super().close(raise_if_closed=raise_if_closed)
        face = self._engine_face
        if face is not None:
            self._ended_counts = face.engine.counts  # first: another thread may ask
        self._engine_face = None
        self._seeds_given = None
        if face is not None:
            face.engine.close()


def kept_generator() -> AbstractContextManager[None]:
    """A context after which torch's global generator is as it was."""
    initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if initialized else ()
    return torch.random.fork_rng(devices=devices)


def _with_dicts_of_its_own(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A copy, down to the dicts in it: an env that takes its ``options`` apart changes no other's and no caller's."""
    return {key: deepcopy(value) if type(value) is dict else value for key, value in kwargs.items()}
