"""Makers of envs that know what they make."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle
import gymnasium as gym

from gymbridge.engine.makers import EnvMaker
from gymbridge.envs.base import EnvBase
from gymbridge.envs.metadata import EnvMetaData

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EnvCreator"]


class EnvCreator:
    """A maker of envs that pickles, and that works out once what its envs look like.

    Called, it gives what it was told to make: a ``gymnasium.Env`` for an id. Keyword arguments of the call are added to
    its own; where both have one, its own holds, as in TorchRL, so that the metadata stay true.

    The metadata are worked out when they are first asked for, not before: a creator may be made only to be sent to
    another process, and making an env here may cost much or be impossible. An env is made for it, and closed. A pickle
    has the metadata, if they are known by then, and puts them on their devices only when they are asked for; lambdas,
    closures and classes of ``__main__`` pickle too.

    Args:
        create_env_fn: a gymnasium id, or a callable that makes a ``gymnasium.Env`` or an ``EnvBase``, a new one each
            time.
        create_env_kwargs: keyword arguments for ``gymnasium.make`` or the callable.
        **kwargs: more of them.

    Raises:
        TypeError: an env that is made already, or anything else that makes none; ``create_env_kwargs`` that are no
            dict, or have an argument that ``kwargs`` has too.

    Example:
        >>> from gymbridge.envs import EnvCreator
        >>> creator = EnvCreator("CartPole-v1", max_episode_steps=10)
        >>> creator.meta_data.specs["input_spec", "full_action_spec", "action"].n
        2
        >>> creator().spec.max_episode_steps
        10
    """

    def __init__(
        self,
        create_env_fn: str | Callable[..., gym.Env[Any, Any] | EnvBase],
        create_env_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        if isinstance(create_env_fn, (gym.Env, EnvBase)) or not (
            isinstance(create_env_fn, str) or callable(create_env_fn)
        ):
            raise TypeError(
                f"create_env_fn: got {reprlib.repr(create_env_fn)} of type {type(create_env_fn).__name__}, expected "
                f"a registered id or a callable that makes an env"
            )
        if create_env_kwargs is None:
            create_env_kwargs = {}
        if not isinstance(create_env_kwargs, Mapping):
            raise TypeError(
                f"create_env_kwargs: got {reprlib.repr(create_env_kwargs)} of type "
                f"{type(create_env_kwargs).__name__}, expected a dict"
            )
        if twice := sorted(create_env_kwargs.keys() & kwargs.keys()):
            raise TypeError(f"create_env_kwargs: got {twice}, which are given as keyword arguments too")
        self._maker = EnvMaker(create_env_fn, {**create_env_kwargs, **kwargs})
        self._meta_data: EnvMetaData | bytes | None = None  # bytes: pickled

    @property
    def create_env_fn(self) -> str | Callable[..., gym.Env[Any, Any] | EnvBase]:
        """The id or the callable."""
        return self._maker.source  # type: ignore[no-any-return]

    @property
    def create_env_kwargs(self) -> dict[str, Any]:
        """A copy of the keyword arguments that each env is made with."""
        return dict(self._maker.kwargs)

    @property
    def initialized(self) -> bool:
        """Whether the metadata are known, so that asking for them makes no env."""
        return self._meta_data is not None

    @property
    def meta_data(self) -> EnvMetaData:
        """What the envs look like; the first to ask has an env made, and closed.

        Raises:
            TypeError: the callable made no env.
            UnsupportedSpaceError: a space without a translation.

        and what making an env raises; the next to ask has it tried again.
        """
        if isinstance(self._meta_data, bytes):
            self._meta_data = cloudpickle.loads(self._meta_data)
        if not isinstance(self._meta_data, EnvMetaData):
            self._meta_data = EnvMetaData.metadata_from_env(self._maker)
        return self._meta_data

    def init_(self) -> Self:
        """Works the metadata out now, if they are not known; returns the creator. Raises what ``meta_data`` does."""
        _ = self.meta_data
        return self

    def __call__(self, **kwargs: Any) -> Any:
        """An env, made with these keyword arguments too; the creator's own win over them."""
        return EnvMaker(self._maker.source, {**kwargs, **self._maker.kwargs})()

    def __getstate__(self) -> dict[str, Any]:
        known = self._meta_data
        return {
            **self.__dict__,
            "_meta_data": cloudpickle.dumps(known) if isinstance(known, EnvMetaData) else known,
        }

    def __repr__(self) -> str:
        arguments = [repr(self.create_env_fn), *(f"{name}={value!r}" for name, value in self._maker.kwargs.items())]
        return f"{type(self).__name__}({', '.join(arguments)})"
