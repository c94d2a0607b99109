"""The spec attributes of an env: stored whole as Composites, shown as a single leaf where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from gymbridge.specs import Composite, TensorSpec

if TYPE_CHECKING:
    from gymbridge.envs.env_specs import EnvSpecs

__all__ = ["FullSpecAttribute", "LeafSpecAttribute"]


class FullSpecAttribute:
    """An attribute that holds one of an env's specs as a ``Composite`` of the env's batch size."""

    form = "as a ``Composite`` with the env's batch size"

    def __init__(self, kind: str):
        self.kind = kind
        self.name = f"{kind}_spec"
        self.__doc__ = f"The {kind} spec {self.form}."

    def __set_name__(self, owner: type[EnvSpecs], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, env: None, owner: type[EnvSpecs]) -> FullSpecAttribute: ...
    @overload
    def __get__(self, env: EnvSpecs, owner: type[EnvSpecs]) -> Composite: ...
    def __get__(self, env: EnvSpecs | None, owner: type[EnvSpecs]) -> FullSpecAttribute | Composite:
        return self if env is None else env._spec_of(self.kind)

    def __set__(self, env: EnvSpecs, spec: TensorSpec) -> None:
        if not isinstance(spec, Composite):
            raise TypeError(f"{self.name}: got {type(spec).__name__}, expected a Composite")
        if spec.shape != env.batch_size:
            raise ValueError(
                f"{self.name}: got batch shape {[*spec.shape]}, expected the env's batch size {[*env.batch_size]}"
            )
        env._store_spec(self.kind, spec)


class LeafSpecAttribute(FullSpecAttribute):
    """The same spec, shown and taken as a leaf where the env has just the one at the usual key."""

    form = "as a leaf where it is the only one and stands at the usual key, else as a ``Composite``"

    @overload  # type: ignore[override]
    def __get__(self, env: None, owner: type[EnvSpecs]) -> LeafSpecAttribute: ...
    @overload
    def __get__(self, env: EnvSpecs, owner: type[EnvSpecs]) -> TensorSpec: ...
    def __get__(self, env: EnvSpecs | None, owner: type[EnvSpecs]) -> LeafSpecAttribute | TensorSpec:
        if env is None:
            return self
        full = env._spec_of(self.kind)
        only: TensorSpec | None = full.get(self.kind, None) if len(full) == 1 else None
        return full if only is None or isinstance(only, Composite) else only

    def __set__(self, env: EnvSpecs, spec: TensorSpec) -> None:
        if not isinstance(spec, Composite):
            if spec.shape[: env.ndim] != env.batch_size:
                raise ValueError(
                    f"{self.name}: got shape {[*spec.shape]}, expected it to begin with the env's batch size "
                    f"{[*env.batch_size]}"
                )
            entries: dict[Any, Any] = {self.kind: spec}
            spec = Composite(entries, shape=env.batch_size)
        super().__set__(env, spec)
