"""Spaces to specs and back."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple

from gymnasium import Space, spaces

from gymbridge.errors import UnsupportedSpaceError
from gymbridge.spaces.leaves import leaf_space, leaf_spec
from gymbridge.spaces.naming import dict_items, place_name, root_key, tuple_items
from gymbridge.spaces.translation import translation_of
from gymbridge.specs import Composite, TensorSpec
from gymbridge.specs._shapes import as_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from gymbridge.spaces.naming import Key
    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._composite import Kind
    from gymbridge.specs._shapes import ShapeLike

__all__ = ["observation_spec", "space_to_spec", "spec_to_space"]


class _Form(NamedTuple):
    """What all specs of a space have in common."""

    device: DeviceLike
    batch: torch.Size
    categorical: bool

    def composite(self, entries: Mapping[str, TensorSpec], kind: Kind) -> Composite:
        return Composite(entries, shape=self.batch, device=self.device, kind=kind)


def space_to_spec(
    space: Space[Any],
    *,
    device: DeviceLike = None,
    batch_size: ShapeLike = (),
    categorical_action_encoding: bool = True,
) -> TensorSpec:
    """Return the spec of a space's values.

    ============================== ================================================================================
    ``Box``                        ``Bounded``; ``Unbounded`` where it has no finite bound
    ``Discrete``                   ``Categorical``, or ``OneHot``
    ``MultiDiscrete``              ``MultiCategorical``, or ``MultiOneHot``
    ``MultiBinary``                ``Binary``
    ``Dict``, ``Tuple``            ``Composite``, with the keys ``"0"``, ``"1"``, ... for the items of a ``Tuple``
    ``Text Graph Sequence OneOf``  ``NonTensor``
    ============================== ================================================================================

    Args:
        space: any gymnasium space, nested to any depth, or one of a type that was registered.
        device: where the values are; None is torch's default device, with nested specs of device None.
        batch_size: dims put before those of the space.
        categorical_action_encoding: False for one-hot encodings of ``Discrete`` and ``MultiDiscrete``.

    Raises:
        UnsupportedSpaceError: a part has no translation, or has values that no tensor holds; the message names it.
        TypeError: not a space, or a ``Dict`` key that is not a string.

    Example:
        >>> from gymnasium.spaces import Box, Dict, Discrete
        >>> spec = space_to_spec(Dict(arm=Box(-1, 1, (3,)), grip=Discrete(2)), batch_size=(4,))
        >>> spec["arm"].shape, spec["grip"].n
        (torch.Size([4, 3]), 2)
        >>> space_to_spec(Discrete(3), categorical_action_encoding=False).rand().dtype
        torch.bool
    """
    return _spec(space, (), _Form(device, as_size(batch_size), categorical_action_encoding))


def observation_spec(space: Space[Any], *, device: DeviceLike = None, batch_size: ShapeLike = ()) -> Composite:
    """Return the spec of an observation space as it stands in an env's TensorDict.

    The keys of a ``Dict`` stand at the root, those that an env uses itself under ``"_user"``; any other space stands
    under ``"observation"``.

    Args:
        space: any gymnasium space, nested to any depth, or one of a type that was registered.
        device: where the values are; None is torch's default device, with nested specs of device None.
        batch_size: dims put before those of the space.

    Raises:
        UnsupportedSpaceError: a part has no translation, or has values that no tensor holds; the message names it.
        TypeError: not a space, or a ``Dict`` key that is not a string.

    Example:
        >>> from gymnasium.spaces import Box, Dict, Discrete, Tuple
        >>> def keys(space):
        ...     return list(observation_spec(space).keys(include_nested=True, leaves_only=True))
        >>> keys(Discrete(2)), keys(Tuple([Discrete(2)])), keys(Dict(reward=Discrete(2), x=Discrete(2)))
        (['observation'], [('observation', '0')], ['x', ('_user', 'reward')])
    """
    form = _Form(device, as_size(batch_size), True)
    if translation_of(space) is not None or not isinstance(space, spaces.Dict):
        return form.composite({"observation": _spec(space, ("observation",), form)}, "leaf")
    entries: dict[str, TensorSpec] = {}
    renamed: dict[str, TensorSpec] = {}
    for _, key, part in dict_items(space, (), root_key):
        (entries if len(key) == 1 else renamed)[key[-1]] = _spec(part, key, form)
    if renamed:
        entries["_user"] = form.composite(renamed, "renamed")
    return form.composite(entries, "dict")


def _spec(space: Any, key: Key, form: _Form) -> TensorSpec:
    if not isinstance(space, Space):
        raise TypeError(f"{place_name(key)}: got {space!r}, expected a gymnasium Space")
    if translation_of(space) is None:
        if isinstance(space, spaces.Dict):
            return form.composite({at[-1]: _spec(part, at, form) for _, at, part in dict_items(space, key)}, "dict")
        if isinstance(space, spaces.Tuple):
            return form.composite({at[-1]: _spec(part, at, form) for _, at, part in tuple_items(space, key)}, "tuple")
    spec = leaf_spec(space, key, form.device, form.categorical)
    return spec.expand(*form.batch, *spec.shape) if form.batch else spec


def spec_to_space(spec: TensorSpec) -> Space[Any]:
    """Return the space of a spec's values: the inverse of ``space_to_spec`` and ``observation_spec``.

    It is the space of what ``spec.to_numpy`` gives. One-hot encodings give the spaces that they encode. Batch dims
    become leading dims of each array, as ``gymnasium.vector.utils.batch_space`` has them (of a ``NonTensor``: nested
    ``Tuple`` spaces). Masks are left out: to gymnasium they are an argument of ``sample``.

    Raises:
        UnsupportedSpaceError: there is no such space (a dim of any size, a lazy stack, data of no known space); the
            message names the part.

    Example:
        >>> from gymbridge.specs import Categorical, OneHot
        >>> spec_to_space(OneHot(3)), spec_to_space(Categorical(3, (2,)))
        (Discrete(3), MultiDiscrete([3 3]))
    """
    return _space(spec, ())


@singledispatch
def _space(spec: Any, key: Key) -> Space[Any]:
    if not isinstance(spec, TensorSpec):
        raise TypeError(f"{place_name(key)}: got {spec!r}, expected a spec")
    return leaf_space(spec, key)


@_space.register(Composite)
def _(spec: Composite, key: Key) -> Space[Any]:
    if type(spec) is not Composite:
        raise UnsupportedSpaceError(f"{place_name(key)}: no space for {spec!r}")
    parts = {name: _space(part, (*key, name)) for name, part in _items(spec)}
    if spec.kind == "leaf" and len(parts) == 1:
        return parts.popitem()[1]
    if spec.kind == "tuple" and set(parts) == set(map(str, range(len(parts)))):
        return spaces.Tuple([parts[str(i)] for i in range(len(parts))])
    if spec.kind in ("leaf", "tuple"):
        raise UnsupportedSpaceError(f"{place_name(key)}: got a Composite of kind {spec.kind!r} with keys {list(parts)}")
    # As a list, so that the keys keep their order.
    return spaces.Dict(list(parts.items()))


def _items(spec: Composite) -> Iterator[tuple[str, TensorSpec]]:
    for name, part in spec._specs.items():
        if isinstance(part, Composite) and part.kind == "renamed":
            yield from _items(part)
        else:
            yield name, part
