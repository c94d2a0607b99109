"""TorchRL envs as gymbridge's, to be run by its batches and pools; needs the extra ``gymbridge[torchrl]``."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import cloudpickle
import gymnasium as gym
import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.interop.torchrl_specs import spec_from_torchrl  # before torchrl: it says which extra is missing
from gymbridge.interop.unlike_members import split_specs

# isort: split

from torchrl._utils import seed_generator
from torchrl.envs import EnvBase as TorchRLEnvBase
from torchrl.envs import TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase

from gymbridge.envs.base import EnvBase
from gymbridge.envs.env_specs import KINDS
from gymbridge.envs.inputs import DeviceLike, as_seed
from gymbridge.envs.seed_chain import SeedChain
from gymbridge.envs.spec_keys import group_sizes, leaf_keys
from gymbridge.envs.tensordicts import cloned, entries, entry, tensordict_of
from gymbridge.specs import Composite

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TorchRLEnv", "TorchRLEnvMaker", "from_torchrl", "next_torchrl_seed"]

Key = tuple[str, ...]
Maker = Callable[..., TorchRLEnvBase]


def from_torchrl(env_or_maker: TorchRLEnvBase | Maker, *, partial_step: bool | None = None) -> Any:
    """A TorchRL env as one of gymbridge's; or of a maker of TorchRL envs a maker of such envs.

    Args:
        env_or_maker: a ``torchrl.envs.EnvBase``, transforms included; or a callable that makes one, a class, or an
            ``EnvCreator``, of which nothing is called here: a batch calls it where the env is to run.
        partial_step: whether an env with a batch size of its own, that honours TorchRL's ``"_step"`` mask, may be
            given one. Unless told, TorchRL's ``SerialEnv``, ``ParallelEnv`` and envs that are not batch-locked may.

    Returns:
        A :class:`TorchRLEnv`, or a :class:`TorchRLEnvMaker`, which pickles where cloudpickle takes the maker.

    Raises:
        TypeError: neither.

    Example:
        >>> from gymbridge import SerialEnv
        >>> from torchrl.envs import GymEnv, StepCounter, TransformedEnv
        >>> env = SerialEnv(3, from_torchrl(lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter(10))))
        >>> _ = env.set_seed(0)
        >>> steps = env.rollout(20, break_when_any_done=False)
        >>> steps.batch_size, int(steps["next", "step_count"].max())
        (torch.Size([3, 20]), 10)
        >>> env.close()
    """
    if isinstance(env_or_maker, TorchRLEnvBase):
        return TorchRLEnv(env_or_maker, partial_step=partial_step)
    return TorchRLEnvMaker(env_or_maker, partial_step=partial_step)


def next_torchrl_seed(seed: int) -> int:
    """The seed that TorchRL's batches give the next env after one that got ``seed``.

    Example:
        >>> next_torchrl_seed(0)
        795726461
    """
    return cast(int, seed_generator(seed))


class TorchRLEnv(EnvBase):
    """A TorchRL env with gymbridge's contract; its specs are converted, its values are what the env gives.

    A step is the env's ``step``, a reset its ``reset``, with what TorchRL's own batches give it: actions, states, and
    what it showed before. A reset after an episode's end, to which TorchRL gives the masks alone, is given these alone
    here too: that is one whose TensorDict has the flag ``done`` for every env that it resets. Any other reset is given
    all that the caller has, and ``set_state=True`` is handed on.

    Leaves that no spec has are not returned, as TorchRL's batches do not return them. Flags are as everywhere in
    gymbridge: ``done`` is ``terminated | truncated``, and there are all three.

    Args:
        env: the TorchRL env. It is closed with this one.
        partial_step: see :func:`from_torchrl`.

    Attributes:
        env: the TorchRL env. What this env lacks is looked up there: ``env.custom`` is ``env.env.custom``.

    Raises:
        TypeError: no TorchRL env.
        ValueError: an env that resets itself in its steps, or has a transform that TorchRL refuses in a worker too.
        UnsupportedSpecError: a spec without a counterpart.

    Example:
        >>> from torchrl.envs import GymEnv, RewardSum, TransformedEnv
        >>> env = from_torchrl(TransformedEnv(GymEnv("CartPole-v1"), RewardSum()))
        >>> td = env.rand_step(env.reset())
        >>> td["next", "episode_reward"]
        tensor([1.])
        >>> env.close()
    """

    env: TorchRLEnvBase

    def __init__(self, env: TorchRLEnvBase, *, partial_step: bool | None = None):
        if not isinstance(env, TorchRLEnvBase):
            raise TypeError(
                f"env: got {reprlib.repr(env)} of type {type(env).__name__}, expected a torchrl.envs.EnvBase"
            )
        _require_runnable(env)
        super().__init__(device=env.device, batch_size=env.batch_size)
        self.env = env
        self.batch_locked = env.batch_locked
        self._partial_step = partial_step
        if partial_step is None and (not env.batch_locked or isinstance(_without_transforms(env), BatchedEnvBase)):
            self._partial_step = True
        self._partial_reset = True  # TorchRL asks it of every env
        self.seed_chain = SeedChain("torchrl", next_torchrl_seed, _num_seeds(_without_transforms(env)))
        self._read_specs()

    def _read_specs(self) -> None:
        theirs = {kind: getattr(self.env, f"full_{kind}_spec") for kind in KINDS}
        converted = {kind: cast(Composite, spec_from_torchrl(spec)) for kind, spec in theirs.items()}
        specs, self._unlike = split_specs(converted, self.ndim)
        for kind in KINDS:
            self._store_spec(kind, specs[kind])
        # of the flags those that the env has; others are completed
        shown = [key for kind in ("observation", "done") for key in leaf_keys(specs[kind])]
        self._shown_keys: dict[str | Key, None] = {_short(key): None for key in shown}
        rewards = specs["reward"]
        self._reward_shapes = [] if self._unlike else [(key, rewards[key].shape) for key in leaf_keys(rewards)]
        self._step_keys = self._shown_keys | {_short(key): None for key in leaf_keys(rewards)}
        self._mask_shapes = {
            (*path, "_reset"): self.full_done_spec[(*path, "done")].shape for path in self._spec_plan.groups.decisive
        }
        self._group_sizes: dict[Key, torch.Size] = {}
        for spec in specs.values():
            for path, size in group_sizes(spec).items():  # what a transform adds may have a group of a smaller size
                self._group_sizes[path] = max(size, self._group_sizes.get(path, size), key=len)

    # ---------------------------------------------------------------- reset and step

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        if tensordict is None or not (len(tensordict.keys()) or self._lead(tensordict)):
            first = self.env.reset(**kwargs)
        elif kwargs.get("set_state") is None and self._all_have_ended(tensordict):
            first = self.env.reset(self._inward(self._masks_alone(tensordict)), select_reset_only=True, **kwargs)
        else:
            first = self.env.reset(self._inward(self._all_of(tensordict)), **kwargs)
        self._latest = _picked(self._outward(first), self._shown_keys)
        return self._latest

    def _all_have_ended(self, tensordict: TensorDictBase) -> bool:
        """Whether the caller's flags say so of every env that is to be reset: what else there is is the end's."""
        groups = self._spec_plan.groups
        if any(tensordict.get((*path, "done"), None) is None for path in groups.decisive):
            return False
        ended = groups.ended(tensordict)
        mask = entry(tensordict, "_reset")
        return bool(ended.all() if mask is None else ended[mask].all())

    def _masks_alone(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What a reset after an episode's end is given: masks, and what envs that they leave out show."""
        given: TensorDictBase = self._shown(tensordict) if self._picks(tensordict) else tensordict.empty()
        self._put_masks(given, tensordict)
        return given

    def _all_of(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What any other reset is given: what the caller has; TorchRL may write into it."""
        picks = self._picks(tensordict)
        given = tensordict.exclude("next", "_reset")
        given = self._sized(cloned(given) if picks else given.copy())
        if picks:
            self._fill(given, self._shown(tensordict))
            self._put_masks(given, tensordict)
        return given

    def _picks(self, tensordict: TensorDictBase) -> bool:
        """Whether a reset is to reset a part only."""
        keys = [("_reset",), *self._mask_shapes]
        return any(tensordict.get(key, None) is not None for key in keys)

    def _put_masks(self, given: TensorDictBase, tensordict: TensorDictBase) -> None:
        """Puts a mask where TorchRL looks for one, in the shape of the flags there."""
        mask = entry(tensordict, "_reset")
        lead = self._lead(tensordict)
        for key, shape in self._mask_shapes.items():
            shape = torch.Size((*lead, *shape))
            own = tensordict.get(key, None)
            if own is None or own.shape != shape:
                own = own if own is not None else mask
                own = torch.ones((), dtype=torch.bool, device=self.device) if own is None else own
                own = own.reshape(*own.shape, *[1] * (len(shape) - own.ndim)).expand(shape).clone()
            self._put(given, key, own)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        latest = self._latest
        if latest is not None and latest.batch_size == tensordict.batch_size:
            tensordict = self._with_shown(tensordict, latest)  # a transform may look at what was shown before
        if self._group_sizes:
            self._sized(tensordict)
        following = self._latest = _picked(self._outward(self._stepped(self._inward(tensordict))), self._step_keys)
        return following

    def _stepped(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What the TorchRL env gives; flags are completed here, which costs a part of what TorchRL's way does."""
        env = self.env
        has_extras = entry(tensordict, "next") is not None or entry(tensordict, "_step") is not None
        if has_extras or env.run_type_checks:
            return cast(TensorDictBase, env.step(tensordict).get("next"))
        made: TensorDictBase = env._step(tensordict)
        lead = self._lead(tensordict)
        for key, shape in self._reward_shapes:
            reward = made.get(key, None)
            if reward is not None and reward.shape != (*lead, *shape) and -1 not in shape:
                made.set(key, reward.view((*lead, *shape)))
        return made

    def _given_to_step(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        """All that the caller has, as TorchRL's envs read it."""
        self._spec_plan.require_inputs(tensordict, self._lead(tensordict))
        given = tensordict.exclude(*self._spec_plan.groups.mask_keys("_step")).copy()
        if self.device is not None and given.device != self.device:
            given = given.to(self.device)
        return self._with_mask(given, "_step", mask)

    def _with_shown(self, given: TensorDictBase, shown: TensorDictBase) -> TensorDictBase:
        """What an env is given with what it showed where that has nothing."""
        if type(given) is type(shown) is TensorDict and not self._group_sizes:
            own, names = entries(shown), self._shown_keys
            return tensordict_of(
                {**{name: own[name] for name in names if name in own}, **entries(given)}, given.batch_size, given.device
            )
        self._fill(given, shown)
        return given

    def _fill(self, given: TensorDictBase, shown: TensorDictBase) -> None:
        """Sets what an env showed where what it is given has nothing."""
        for key in self._shown_keys:
            if given.get(key, None) is None:
                value = shown.get(key, None)
                if value is not None:
                    self._put(given, key, value)

    def _put(self, given: TensorDictBase, key: str | Key, value: Any) -> None:
        """Sets a leaf, in groups of the size that they have in the specs."""
        if isinstance(key, tuple):
            lead = given.batch_size[: given.ndim - self.ndim]
            for depth in range(1, len(key)):
                path = key[:depth]
                if given.get(path, None) is None:
                    given.set(path, TensorDict({}, (*lead, *self._group_sizes[path]), device=given.device))
        given.set(key, value)

    def _sized(self, given: TensorDictBase) -> TensorDictBase:
        """The same, its groups with the batch sizes of the specs."""
        lead = given.batch_size[: given.ndim - self.ndim]
        for path, size in self._group_sizes.items():
            group = given.get(path, None)
            if type(group) is TensorDict and group.batch_size != (*lead, *size):
                group.batch_size = torch.Size((*lead, *size))
        return given

    def _inward(self, given: TensorDictBase) -> TensorDictBase:
        """What the TorchRL env is given, which is ours to change, in its own form."""
        for parts in [given, entry(given, "next")] if self._unlike else ():
            if parts is not None:
                for members in reversed(self._unlike):
                    members.together(parts, len(self._lead(given)))
        return given

    def _outward(self, made: TensorDictBase) -> TensorDictBase:
        """What the TorchRL env gave, in the form of our specs."""
        if self._unlike:
            made = made.copy()
            for members in self._unlike:
                members.apart(made, len(self._lead(made)))
        return made

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """See :meth:`EnvBase.rand_action`; the TorchRL env draws it, so that its action mask holds."""
        self._require_batch_size("rand_action", tensordict)
        if not self._unlike:
            return cast(TensorDictBase, self.env.rand_action(tensordict))
        given = None if tensordict is None else self._inward(tensordict.copy())
        drawn = self._outward(self.env.rand_action(given)).select(*self.action_keys)
        return drawn if tensordict is None else tensordict.update(drawn)

    # ---------------------------------------------------------------- seeds, states, the end

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """See :meth:`EnvBase.set_seed`; what is returned is the next seed as TorchRL counts them."""
        seed = as_seed(seed)
        if seed is not None:
            torch.manual_seed(seed % 2**64)
        return cast("int | None", self.env.set_seed(seed, static_seed=static_seed))

    def _set_seed(self, seed: int | None) -> None:
        self.env.set_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """The env's own, that of its transforms say."""
        return dict(self.env.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Hands it on to the env, which raises what it raises."""
        self.env.load_state_dict(state_dict)

    def to(self, device: DeviceLike) -> Self:
        """See :meth:`EnvBase.to`; the TorchRL env moves."""
        super().to(device)
        self.env = self.env.to(self.device)
        return self

    def close(self, *, raise_if_closed: bool = True) -> None:
        """See :meth:`EnvBase.close`; the TorchRL env is closed too."""
        super().close(raise_if_closed=raise_if_closed)
        if not self.env.is_closed:
            self.env.close()

    # ---------------------------------------------------------------- the env itself

    def _inner_envs(self) -> Sequence[Any]:
        return [_without_transforms(self.env)]

    def __getattr__(self, name: str) -> Any:
        """What the TorchRL env has or, if that wraps one of gymnasium, what this one has in any of its wrappers."""
        if name.startswith("_") or name == "env" or hasattr(type(self), name):
            return object.__getattribute__(self, name)
        try:
            return getattr(self.env, name)
        except AttributeError:
            gym_env = _gym_env(self.env)
            if gym_env is None or not gym_env.has_wrapper_attr(name):
                raise
            return gym_env.get_wrapper_attr(name)

    def set_attr(self, name: str, value: Any) -> None:
        """Sets an attribute where it is found, within transforms too, or else on the env without these."""
        env: Any = self.env
        while isinstance(env, TransformedEnv) and not _has_own(env, name):
            env = env.base_env
        gym_env = _gym_env(env)
        if gym_env is not None and not _has_own(env, name) and gym_env.has_wrapper_attr(name):
            gym_env.set_wrapper_attr(name, value)
        else:
            setattr(env, name, value)


class TorchRLEnvMaker:
    """Makes :class:`TorchRLEnv` of what a maker of TorchRL envs makes; it pickles where cloudpickle takes the maker.

    Args:
        maker: the maker.
        partial_step: see :func:`from_torchrl`.

    Raises:
        TypeError: something that cannot be called; when called, a maker that made no TorchRL env.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> env = from_torchrl(GymEnv)(env_name="CartPole-v1")
        >>> env.action_keys
        ['action']
        >>> env.close()
    """

    def __init__(self, maker: Maker, *, partial_step: bool | None = None):
        if not callable(maker):
            raise TypeError(
                f"env_or_maker: got {reprlib.repr(maker)} of type {type(maker).__name__}, expected a "
                f"torchrl.envs.EnvBase or a callable that makes one"
            )
        self.maker = maker
        self.partial_step = partial_step

    def __call__(self, **kwargs: Any) -> TorchRLEnv:
        """An env, made with these keyword arguments."""
        return TorchRLEnv(self.maker(**kwargs), partial_step=self.partial_step)

    def __reduce__(self) -> tuple[Any, ...]:
        return _maker_of, (cloudpickle.dumps((self.maker, self.partial_step)),)

    def __repr__(self) -> str:
        return f"from_torchrl({self.maker!r})"


def _maker_of(pickled: bytes) -> TorchRLEnvMaker:
    maker, partial_step = cloudpickle.loads(pickled)
    return TorchRLEnvMaker(maker, partial_step=partial_step)


def _short(key: Key) -> str | Key:
    return key[0] if len(key) == 1 else key


def _picked(tensordict: TensorDictBase, keys: Mapping[str | Key, None]) -> TensorDictBase:
    """These leaves alone, as far as they are there."""
    if type(tensordict) is TensorDict and entries(tensordict).keys() <= keys.keys():
        return tensordict
    return tensordict.select(*keys, strict=False)


def _without_transforms(env: TorchRLEnvBase) -> TorchRLEnvBase:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def _has_own(env: TorchRLEnvBase, name: str) -> bool:
    return name in vars(env) or hasattr(type(env), name)


def _gym_env(env: TorchRLEnvBase) -> gym.Env[Any, Any] | None:
    """The gymnasium env that a TorchRL env wraps."""
    inner = vars(_without_transforms(env)).get("_env")
    return inner if isinstance(inner, gym.Env) else None


def _num_seeds(env: TorchRLEnvBase) -> int:
    """How many seeds of TorchRL's chain an env takes: a batch one for each of its envs."""
    if not isinstance(env, BatchedEnvBase):
        return 1
    inner = [_without_transforms(each) for each in vars(env).get("_envs", ())]
    return sum(map(_num_seeds, inner)) if inner else int(env.num_workers)


def _require_runnable(env: TorchRLEnvBase) -> None:
    """Refuses an env whose resets are no resets, or whose results only its own loop puts right.

    Raises:
        ValueError: naming the env.
    """
    if vars(env).get("_torchrl_native_autoreset", False):
        raise ValueError(
            f"env: {type(_without_transforms(env)).__name__} resets itself in its steps (native_autoreset=True), "
            f"expected one that is reset when it is told"
        )
    outer = env
    while isinstance(outer, TransformedEnv):
        try:
            outer.transform._check_batched_worker_compat()
        except RuntimeError as error:
            raise ValueError(
                f"env: {type(outer.transform).__name__} cannot be inside of an env that others step: {error}"
            ) from error
        outer = outer.base_env
