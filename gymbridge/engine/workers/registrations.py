"""The gymnasium ids of the parent process, for its workers.

What a worker needs of them: those that it does not have by importing gymnasium, since the user's script or a module of
the user's registered them; and, for entry points that name ``__main__``, what they name there, since the worker's
``__main__`` is not the user's script. Each is pickled by itself, so that one that cannot be leaves the others alone.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import cloudpickle
from gymnasium.envs.registration import EnvSpec, registry

from gymbridge.engine.workers.pickling import dumps
from gymbridge.errors import UnpicklableError

__all__ = ["Registrations", "expect_ids_again", "forget_ids", "registered", "restore_ids"]

_sent: dict[str, EnvSpec] = {}
"""In a worker: the ids that it was given."""


def registered() -> dict[str, EnvSpec]:
    """What is registered in this process now: gymnasium ids and their specs."""
    return dict(registry)


def expect_ids_again() -> None:
    """Has gymnasium not warn in this process of an id that is taken: in a worker that is no news.

    A module registers its ids when it is imported, in a worker that has been given them already; and a maker that
    registers one is called there more than once.
    """
    warnings.filterwarnings("ignore", r".*WARN: Overriding environment .* already in registry", UserWarning)


def restore_ids() -> None:
    """Has the ids that this worker was given mean again what they were given as.

    A module that was imported meanwhile, to make an env, has registered its ids as they are without what the user
    changed of them.
    """
    registry.update(_sent)


def forget_ids() -> None:
    """In a fork of a worker, whose ids are as they are here: has ``restore_ids`` do nothing."""
    _sent.clear()


@dataclass(frozen=True)
class Registrations:
    """Gymnasium ids on their way to a worker.

    Attributes:
        specs: id -> its pickled spec, or why there is none.
        main: name in ``__main__`` -> what it names there, pickled.

    Example:
        >>> import gymnasium
        >>> gymnasium.register("gymbridge/Example-v0", entry_point="somewhere:Env")
        >>> sent = Registrations.of(registered(), known=registered())
        >>> sent.specs
        {}
        >>> spec = gymnasium.registry.pop("gymbridge/Example-v0")
        >>> Registrations.of({spec.id: spec}, known=registered()).apply()
        >>> gymnasium.registry.pop("gymbridge/Example-v0") == spec
        True
    """

    specs: Mapping[str, bytes | str]
    main: Mapping[str, bytes]

    @classmethod
    def of(cls, specs: Mapping[str, EnvSpec], known: Mapping[str, EnvSpec]) -> Registrations:
        """Those of ``specs`` that a worker, which has ``known``, lacks or has otherwise."""
        news = {id_: spec for id_, spec in specs.items() if not _equal(spec, known.get(id_))}
        pickled: dict[str, bytes | str] = {}
        for id_, spec in news.items():
            try:
                pickled[id_] = dumps(spec, f"the registration of {id_!r}")
            except UnpicklableError as error:
                pickled[id_] = str(error)
        main = {}
        for name in sorted({name for spec in news.values() for name in _names_in_main(spec)}):
            if hasattr(sys.modules["__main__"], name):
                try:
                    main[name] = cloudpickle.dumps(getattr(sys.modules["__main__"], name))
                except Exception:  # the worker's gym.make says what it misses
                    continue
        return cls(pickled, main)

    def apply(self) -> None:
        """Registers them in this process; one that cannot be has a spec of its id that says why, when it is made."""
        for name, pickled in self.main.items():
            try:
                vars(sys.modules["__main__"]).setdefault(name, cloudpickle.loads(pickled))
            except Exception:
                continue
        for id_, spec in self.specs.items():
            if isinstance(spec, str):
                _sent[id_] = EnvSpec(id_, entry_point=_Refusal(spec))
                continue
            try:
                _sent[id_] = cloudpickle.loads(spec)
            except Exception as error:
                why = f"the registration of {id_!r} could not be read in this worker: {type(error).__name__}: {error}"
                _sent[id_] = EnvSpec(id_, entry_point=_Refusal(why))
        restore_ids()


@dataclass(frozen=True)
class _Refusal:
    """Stands where a maker would, and says why there is none."""

    why: str

    def __call__(self, **_: Any) -> NoReturn:
        raise UnpicklableError(self.why)


def _equal(spec: EnvSpec, other: EnvSpec | None) -> bool:
    try:
        return bool(spec == other)
    except Exception:  # arrays among its kwargs
        return False


def _names_in_main(spec: EnvSpec) -> Iterator[str]:
    """Names of ``__main__`` in which entry points of a spec begin."""
    wrappers = [wrapper.entry_point for wrapper in spec.additional_wrappers]
    for entry_point in (spec.entry_point, spec.vector_entry_point, *wrappers):
        if isinstance(entry_point, str):
            module, _, name = entry_point.partition(":")
            if module == "__main__":
                yield name.partition(".")[0]
