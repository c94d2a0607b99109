"""Batches whose envs run in workers: what their fronts share."""

from __future__ import annotations

import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from gymbridge.batched import BatchedEnvBase
from gymbridge.engine.any_env import AnyEnvDescription, WrappedGymOptions
from gymbridge.engine.dispatch import Arguments
from gymbridge.engine.gym_host import GymEnvDescription
from gymbridge.engine.parallel import ParallelEngine
from gymbridge.envs.engine_face import EngineFace
from gymbridge.envs.env_kind import EnvKind, require_like_envs
from gymbridge.envs.gym_face import GymFaceOptions
from gymbridge.envs.needs_torch import need_torch
from gymbridge.envs.per_env import PerEnv
from gymbridge.envs.remote_face import RemoteTensorDictFace
from gymbridge.envs.remote_host import RemoteTensorDictOptions
from gymbridge.envs.remote_per_env import RemotePerEnv

__all__ = ["WorkerBatch"]

_Made = TypeVar("_Made")

_WITH_TORCH = ("gymbridge.envs.remote_host",)
"""What workers of TensorDict envs import: it takes seconds, so it is done once, before they are forked."""


class WorkerBatch(BatchedEnvBase):
    """A batch whose envs are made in workers, which tell what they are: only then is chosen how they are run.

    A subclass writes ``_start_engine``.
    """

    @abstractmethod
    def _start_engine(self, preload: Sequence[str]) -> Any:
        """The engine, whose envs have described themselves.

        Args:
            preload: modules that the workers need and that take long to import.
        """

    def _make_face(self) -> EngineFace:
        engine = self._start_engine(_WITH_TORCH if self._runs_tensordict_envs() else ())
        try:
            described: list[AnyEnvDescription] = engine.descriptions
            _require_distinct(described)
            kinds = [each.kind for each in described]
            return self._gym_face(engine, kinds) or self._tensordict_face(engine, kinds)
        except BaseException:
            with suppress(Exception):  # what went wrong first is what the caller is to see
                engine.close()
            raise

    def _runs_tensordict_envs(self) -> bool:
        """Whether the workers will run TensorDict envs, as far as can be told before they start."""
        # several tasks: their spaces differ, so that what they give is stacked by torch
        are_tasks = len({maker.source for maker in self._makers if isinstance(maker.source, str)}) > 1
        by_torch = self._use_buffers is False or bool(self._share_individual_td) or are_tasks
        return by_torch or need_torch(self._makers)

    def _gym_face(self, engine: ParallelEngine[Any], kinds: list[Any]) -> EngineFace | None:
        """The face of gymnasium envs of one kind; None where the envs are anything else."""
        if self._share_individual_td or self._use_buffers is False:
            return None
        options = [kind.options if isinstance(kind, EnvKind) else None for kind in kinds]
        envs: list[Any] = [kind.gym_env if isinstance(kind, EnvKind) else kind for kind in kinds]
        wrapped = [isinstance(kind, EnvKind) for kind in kinds]
        if None in envs or len({*wrapped}) > 1 or any(own != options[0] for own in options):
            return None
        if any(not _have_equal_spaces(env, envs[0]) for env in envs):
            return None
        self._take_device(kinds)
        face_options: GymFaceOptions = options[0] or GymFaceOptions()
        engine.describe(WrappedGymOptions(face_options.host) if wrapped[0] else face_options.host)
        engine.allocate()
        return self._face_of_gym_envs(engine, face_options)

    def _tensordict_face(self, engine: ParallelEngine[Any], kinds: list[Any]) -> EngineFace:
        for row, kind in enumerate(kinds):
            if isinstance(kind, EnvKind):
                require_like_envs(row, kind.difference)
        self._take_device(kinds, gymnasium_too=True)
        self._describe_tensordict_envs(engine, kinds)
        engine.allocate()
        return RemoteTensorDictFace(
            engine, self._device, self._selection, self._share_individual_td, self._non_blocking
        )

    def _describe_tensordict_envs(self, engine: ParallelEngine[Any], kinds: list[Any]) -> None:
        """Has the envs described as TensorDict envs, under the options of this batch."""
        dynamic = [row for row, kind in enumerate(kinds) if isinstance(kind, EnvKind) and kind.has_dynamic_specs]
        if self._use_buffers and dynamic:
            warnings.warn(
                f"use_buffers: got True, but envs {dynamic} have dynamic specs; everything goes by message",
                stacklevel=2,
            )
        engine.describe(self._tensordict_options(buffers=self._use_buffers is not False and not dynamic))

    def _tensordict_options(self, *, buffers: bool) -> RemoteTensorDictOptions:
        """How TensorDict envs are run."""
        return RemoteTensorDictOptions(
            buffers=buffers, stacks=not self._share_individual_td, keeps_devices=self._device is None
        )

    def _take_device(self, kinds: list[Any], gymnasium_too: bool = False) -> None:
        devices = {kind.device for kind in kinds if isinstance(kind, EnvKind)}
        if gymnasium_too and any(isinstance(kind, GymEnvDescription) for kind in kinds):
            devices.add(None)
        self._take_common_device(devices)

    @property
    def _num_counted(self) -> int:
        return self.num_workers

    # ---------------------------------------------------------------- the envs themselves

    def _of_each_env(self, name: str) -> PerEnv:
        engine: Any = self._face.engine
        return RemotePerEnv(partial(_followed, weakref.ref(self), engine), self.num_envs, (name,))

    def _only_call(self, name: str, call: Callable[[], _Made]) -> _Made:
        """Makes a call, unless another is under way, which is refused meanwhile; see ``exclusive``."""
        self._require_no_call(name)
        self._call_under_way = name
        try:
            return call()
        finally:
            self._call_under_way = None


def _followed(
    env: weakref.ref[WorkerBatch],
    engine: ParallelEngine[Any],
    rows: Iterable[int],
    path: tuple[str, ...],
    call: Arguments | None,
) -> Mapping[int, Any]:
    """Follows a path in some rows' envs, unless a call of their batch is under way."""
    rows, batch = list(rows), env()
    if batch is None:
        return _ask(engine, rows, path, call)
    return batch._only_call(path[0], partial(_ask, engine, rows, path, call))


def _ask(
    engine: ParallelEngine[Any], rows: Sequence[int], path: tuple[str, ...], call: Arguments | None
) -> Mapping[int, Any]:
    if len(rows) == engine.num_envs:
        return dict(zip(rows, engine.each("follow", [(path, call)] * len(rows)), strict=True))
    return {row: engine.follow(row, path, call) for row in rows}


def _have_equal_spaces(one: GymEnvDescription, other: GymEnvDescription) -> bool:
    return one is other or (one.observation_space == other.observation_space and one.action_space == other.action_space)


def _require_distinct(described: Sequence[AnyEnvDescription]) -> None:
    """Refuses one env object from two makers, in wrappers or batches of their own too."""
    found: dict[tuple[int, int], int] = {}
    for index, env in enumerate(described):
        for core, text in env.cores.items():
            other = found.setdefault(core, index)
            if other != index:
                raise ValueError(f"the makers of envs {other} and {index} gave one and the same env: {text}")
