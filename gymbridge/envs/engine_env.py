"""An env over an engine of gymnasium envs: what ``GymEnv`` and the batched envs share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase

from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.gym_host import GymEnvDescription
from gymbridge.engine.host import Engine
from gymbridge.envs.base import EnvBase
from gymbridge.envs.engine_face import EngineFace
from gymbridge.envs.inputs import DeviceLike, as_seed, env_device
from gymbridge.envs.masks import read_mask
from gymbridge.envs.tensordicts import entry
from gymbridge.envs.transitions import put_first, put_next
from gymbridge.specs import Composite

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EngineEnv"]


class EngineEnv(OneCallAtATime, EnvBase):
    """An env whose resets and steps are rounds of an engine.

    A subclass writes ``_make_face``, which makes the engine; it is called at the first use.
    """

    _partial_step = _partial_reset = True
    _engine_face: EngineFace | None = None
    _seeds: list[int | None] | None = None
    """Seeds that wait for the next reset, one a row."""

    @abstractmethod
    def _make_face(self) -> EngineFace:
        """Starts the engine and gives its TensorDict face."""

    @property
    def _face(self) -> EngineFace:
        """The face; starts the engine if it is not running."""
        if self._engine_face is None:
            self._require_open("start")
            self._engine_face = self._make_face()
            self._take_specs(self._engine_face)
        return self._engine_face

    @property
    def engine(self) -> Engine[GymEnvDescription]:
        """The engine that runs the envs; starts it if it is not running."""
        return self._face.engine

    def _take_specs(self, face: EngineFace) -> None:
        self.set_spec_lock_(False)
        for kind in ("done", "state"):  # made before the device was known, perhaps
            self._store_spec(kind, self._specs[kind])
        self.observation_spec = face.observation_spec
        self.full_action_spec = Composite({"action": face.action_spec}, shape=self.batch_size, device=self._device)
        self.reward_spec = face.reward_spec
        self.set_spec_lock_()

    def _spec_of(self, kind: str) -> Composite:
        if kind not in self._specs:
            _ = self._face
        return super()._spec_of(kind)

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
        if kwargs.get("seed") is not None and self.numel() > 1:
            raise ValueError(
                f"seed: got {kwargs['seed']!r} for a batch, whose {self.numel()} envs would all be the same; call "
                f"set_seed(seed), which gives env i the seed seed + i, and then reset()"
            )
        face = self._face
        self._require_batch_size("reset", tensordict)
        mask = read_mask(tensordict, "_reset", self.batch_size)
        try:
            first = face.reset(tensordict, mask, self._reset_kwargs(kwargs))
        finally:
            self._take_seeds_off(face)
        return first if tensordict is None else put_first(tensordict, first)

    @exclusive
    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See :meth:`EnvBase.step`."""
        self._require_open("step")
        face = self._engine_face or self._face
        self._require_batch_size("step", tensordict)
        self._require_unlocked("step", tensordict)
        mask = read_mask(tensordict, "_step", self._batch_size)
        return put_next(tensordict, face.step(tensordict, mask), entry(tensordict, "next"))

    @exclusive
    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """See :meth:`EnvBase.step_and_maybe_reset`; one round of the engine."""
        self._require_open("step_and_maybe_reset")
        face = self._engine_face or self._face
        self._require_batch_size("step_and_maybe_reset", tensordict)
        self._require_unlocked("step_and_maybe_reset", tensordict)
        mask = read_mask(tensordict, "_step", self._batch_size)
        reset_kwargs = None if self._seeds is None else self._reset_kwargs({})
        try:
            following, root = face.step_and_maybe_reset(tensordict, mask, reset_kwargs)
        finally:
            self._take_seeds_off(face)
        preset = entry(tensordict, "next")
        if preset is not None:
            self._next_root.carry(preset, root)
        put_next(tensordict, following, preset)
        self._next_root.carry(tensordict, root)
        return tensordict, root

    @exclusive
    def step_or_reset(self, tensordict: TensorDictBase, resets: torch.Tensor) -> TensorDictBase:
        """Resets the envs of a batch that a mask picks and steps the others, in one round of the engine.

        Args:
            tensordict: has the actions; those of the envs that are reset may be anything. It stays as it is.
            resets: a CPU bool tensor ``[*B]``.

        Returns:
            What each env shows then: observation, infos, reward (zero after a reset) and flags (False after one).

        Raises:
            What :meth:`step` raises.
        """
        self._require_open("step_or_reset")
        face = self._engine_face or self._face
        self._require_batch_size("step_or_reset", tensordict)
        try:
            return face.step_or_reset(tensordict, resets, self._reset_kwargs({}))
        finally:
            self._take_seeds_off(face)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        return self._face.reset(None, None, self._reset_kwargs(kwargs))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._face.step(tensordict, None)

    def last_partial(self) -> TensorDictBase | None:
        """What the other envs gave in the last call in which an env raised; None if none ever did.

        Returns:
            The TensorDict that the call would have returned, with ``"_failed"``, bool ``[*B]``, true for the envs that
            raised: their rows are as those of envs that were not stepped.
        """
        return None if self._engine_face is None else self._engine_face.partial

    def _output_faults(self, num_steps: int, seed: int | None) -> list[str]:
        rows: dict[str, list[int]] = {}
        for row in range(self.numel()):
            for fault in self._face.engine.faults(row, num_steps, seed):
                rows.setdefault(fault, []).append(row)
        return [f"envs {envs}: {fault}" if self.batch_size else fault for fault, envs in rows.items()]

    # ---------------------------------------------------------------- seeds

    @exclusive
    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """See :meth:`EnvBase.set_seed`: the seeds are those of ``reset(seed=seed)`` of a gymnasium vector env."""
        seed = as_seed(seed)
        if seed is None:
            self._seeds = None
            return None
        if self._engine_face is not None:
            self._engine_face.take_rows_reset()
        torch.manual_seed(seed % 2**64)
        num_envs = self.numel()
        self._seeds = [seed if static_seed else seed + row for row in range(num_envs)]
        return seed if static_seed else seed + num_envs

    @exclusive
    def seed_rows(self, seeds: Sequence[int | None]) -> None:
        """Gives each env a seed of its own, or None for none, for its next reset; torch is not seeded.

        Raises:
            TypeError, ValueError: a seed that is no int, a negative one, or another number of seeds than envs.
        """
        if len(seeds) != self.numel():
            raise ValueError(f"seeds: got {len(seeds)}, expected {self.numel()}, one for each env")
        checked = [as_seed(seed) for seed in seeds]
        if self._engine_face is not None:
            self._engine_face.take_rows_reset()
        self._seeds = checked

    def _set_seed(self, seed: int | None) -> None:
        self.set_seed(seed)

    def _reset_kwargs(self, kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One dict an env: its waiting seed, what is its own in ``list_of_kwargs``, and what goes to all."""
        seeds = self._seeds or [None] * self.numel()
        own = kwargs.get("list_of_kwargs", None) if self._batch_size else None
        if own is None:
            return [{**({} if seed is None else {"seed": seed}), **kwargs} for seed in seeds]
        if not isinstance(own, (list, tuple)) or len(own) != len(seeds):
            got = f"a list of {len(own)}" if isinstance(own, (list, tuple)) else repr(own)
            raise ValueError(f"list_of_kwargs: got {got}, expected a list of {len(seeds)} dicts, one for each env")
        for index, each in enumerate(own):
            if not isinstance(each, Mapping):
                raise TypeError(f"list_of_kwargs: got {each!r} for env {index}, expected a dict")
        common = {key: value for key, value in kwargs.items() if key != "list_of_kwargs"}
        both = zip(seeds, own, strict=True)
        return [{**({} if seed is None else {"seed": seed}), **each, **common} for seed, each in both]

    def _take_seeds_off(self, face: EngineFace) -> None:
        """A seed is for one reset."""
        if self._seeds is not None:
            for row in face.take_rows_reset():
                self._seeds[row] = None
            if not any(seed is not None for seed in self._seeds):
                self._seeds = None

    # ---------------------------------------------------------------- states

    @exclusive
    def state_dict(self) -> dict[str, Any]:
        """The state of the env's ``np_random`` and, where the env has ``get_state`` and ``set_state``, its own.

        A batch has one such dict an env, ``"worker0"`` to ``"worker(N-1)"``. Locks in it are None.
        """
        engine = self._face.engine
        if not self._batch_size:
            return engine.state(0)
        return {f"worker{row}": engine.state(row) for row in range(engine.num_envs)}

    @exclusive
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave; a batch also takes the dict of one env, for all of them.

        Raises:
            KeyError: not what ``state_dict`` gives.
            TypeError: something that is not a dict.
        """
        engine = self._face.engine
        rows = range(engine.num_envs)
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict: got {state_dict!r}, expected a dict")
        states = [state_dict] * engine.num_envs
        if any(key.startswith("worker") for key in state_dict):
            missing = [f"worker{row}" for row in rows if f"worker{row}" not in state_dict]
            if missing or len(state_dict) != engine.num_envs:
                raise KeyError(f"state_dict: got the keys {[*state_dict]}, expected worker0 to worker{len(rows) - 1}")
            states = [state_dict[f"worker{row}"] for row in rows]
        for row, state in zip(rows, states, strict=True):
            engine.load_state(row, state)

    # ---------------------------------------------------------------- copies, devices and the end

    def __getstate__(self) -> dict[str, Any]:
        """The configuration, without the engine: what is unpickled starts its own."""
        return {**self.__dict__, "_engine_face": None, "_latest": None, "_call_under_way": None}

    @exclusive
    def to(self, device: DeviceLike) -> Self:
        """Has the env return everything on a device, from now on; returns the env."""
        super().to(device)
        if self._engine_face is not None:
            self._engine_face = self._engine_face.on(env_device(device))
            self._take_specs(self._engine_face)
        return self

    @exclusive
    def close(self, *, raise_if_closed: bool = True) -> None:
        """See :meth:`EnvBase.close`; the envs are closed too."""
        super().close(raise_if_closed=raise_if_closed)
        face, self._engine_face = self._engine_face, None
        if face is not None:
            face.engine.close()
