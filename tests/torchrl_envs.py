"""TorchRL envs that tests run by TorchRL's batches and by gymbridge's; makers that pickle, and workers can import."""

from __future__ import annotations

from typing import Any

import gymnasium.envs.classic_control  # noqa: F401  # before threads of a worker do so at once
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    NonTensor,
    OneHot,
    StackedComposite,
    Unbounded,
)
from torchrl.envs import (
    ActionMask,
    CatFrames,
    Compose,
    DoubleToFloat,
    EnvBase,
    GymEnv,
    InitTracker,
    ObservationNorm,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    Transform,
    TransformedEnv,
)

__all__ = ["MAKERS", "Noisy", "Squares"]


class _SeededEnv(EnvBase):
    """An env that draws from a generator of its own."""

    generator: torch.Generator

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.generator = torch.Generator()

    def _set_seed(self, seed: int | None) -> None:
        self.seed_given = seed
        self.generator.manual_seed(0 if seed is None else seed)

    def _noise(self, *shape: int) -> torch.Tensor:
        return torch.rand(*self.batch_size, *shape, generator=self.generator)


class Squares(_SeededEnv):
    """Counts its steps; ``count`` and its square are observed, both moved by the action and by noise.

    A batch of them honours ``"_reset"``: each env counts for itself.
    """

    def __init__(self, length: int = 5, batch_size: tuple[int, ...] = (), dtype: torch.dtype = torch.float32):
        super().__init__(batch_size=batch_size)
        size = self.batch_size
        self.observation_spec = Composite(
            count=Unbounded((*size, 1), dtype=torch.int64), square=Unbounded((*size, 2), dtype=dtype), shape=size
        )
        self.action_spec = Categorical(3, size, dtype=torch.int64)
        self.reward_spec = Unbounded((*size, 1))
        flag = Binary(1, (*size, 1), dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=size)
        self.length = length
        self.dtype = dtype
        self.count = torch.zeros(*size, 1, dtype=torch.int64)
        self.names = ["left", "right"]

    def times(self, number: int) -> int:
        return number * self.length

    def _shown(self) -> dict[str, torch.Tensor]:
        square = (self.count**2 + self._noise(2)).to(self.dtype)
        return {"count": self.count.clone(), "square": square}

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            self.count = torch.zeros_like(self.count)
        else:
            self.count = torch.where(mask.reshape(self.count.shape), 0, self.count)
        return TensorDict(self._shown(), self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count = self.count + 1
        action = tensordict["action"].unsqueeze(-1)
        shown = self._shown()
        shown["square"] = shown["square"] + action
        return TensorDict(
            {
                **shown,
                "reward": (action + self.count).float(),
                "terminated": self.count >= self.length + action,
                "truncated": self.count >= self.length + 1,
                "done": self.count >= torch.minimum(self.length + action, torch.tensor(self.length + 1)),
            },
            self.batch_size,
        )


class Agents(_SeededEnv):
    """Three agents in a group, and one beside it; each agent has its own flags, and the root has, unless told."""

    def __init__(self, root_flags: bool = True, two_groups: bool = False):
        super().__init__()
        groups = {"walkers": 3, "flyers": 2} if two_groups else {"walkers": 3}
        observation, action, reward, done = Composite(), Composite(), Composite(), Composite()
        for name, size in groups.items():
            flag = Binary(1, (size, 1), dtype=torch.bool)
            observation[name] = Composite(position=Unbounded((size, 2)), shape=(size,))
            action[name] = Composite(action=Categorical(4, (size,)), shape=(size,))
            reward[name] = Composite(reward=Unbounded((size, 1)), shape=(size,))
            done[name] = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(size,))
        observation["time"] = Unbounded((1,), dtype=torch.int32)
        if root_flags:
            flag = Binary(1, (1,), dtype=torch.bool)
            for name in ("done", "terminated", "truncated"):
                done[name] = flag.clone()
        self.groups = groups
        self.root_flags = root_flags
        self.observation_spec, self.full_action_spec = observation, action
        self.full_reward_spec, self.full_done_spec = reward, done
        self.time = 0
        self.ages = {name: torch.zeros(size, 1, dtype=torch.int64) for name, size in groups.items()}

    def _group(self, name: str) -> TensorDict:
        size = self.groups[name]
        return TensorDict({"position": self.ages[name] + self._noise(size, 2)}, (size,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        made = TensorDict()
        for name in self.groups:
            mask = None if tensordict is None or self.root_flags else tensordict.get((name, "_reset"), None)
            old = self.ages[name]
            self.ages[name] = torch.zeros_like(old) if mask is None else torch.where(mask, 0, old)
            made[name] = self._group(name)
        self.time = 0
        made["time"] = torch.zeros(1, dtype=torch.int32)
        return made

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.time += 1
        made = TensorDict(time=torch.tensor([self.time], dtype=torch.int32))
        everyone = torch.zeros(0, dtype=torch.bool)
        for name in self.groups:
            action = tensordict[name, "action"].unsqueeze(-1)
            self.ages[name] = self.ages[name] + 1
            ended = self.ages[name] >= 3 + action
            group = self._group(name)
            group["position"] = group["position"] + action
            group["reward"] = action.float()
            group["terminated"], group["truncated"] = ended, torch.zeros_like(ended)
            group["done"] = ended.clone()
            made[name] = group
            everyone = torch.cat([everyone, ended.flatten()])
        if self.root_flags:
            made["done"] = made["terminated"] = everyone.all().reshape(1)
            made["truncated"] = torch.zeros(1, dtype=torch.bool)
        return made


class Menu(_SeededEnv):
    """Of four dishes one that was had is off: ``action_mask`` says what is left; without any, the meal is over."""

    def __init__(self, one_hot: bool = False):
        super().__init__()
        self.observation_spec = Composite(action_mask=Binary(4, dtype=torch.bool), taste=Unbounded((1,)))
        self.action_spec = OneHot(4) if one_hot else Categorical(4)
        self.reward_spec = Unbounded((1,))
        self.one_hot = one_hot
        self.mask = torch.ones(4, dtype=torch.bool)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.mask = torch.ones(4, dtype=torch.bool)
        return TensorDict(action_mask=self.mask.clone(), taste=self._noise(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"].long()
        dish = int(action.argmax(-1)) if self.one_hot else int(action)
        if not self.mask[dish]:
            raise ValueError(f"dish {dish} is off")
        self.mask = self.mask.clone()
        self.mask[dish] = False
        return TensorDict(
            action_mask=self.mask.clone() if self.mask.any() else torch.ones(4, dtype=torch.bool),
            taste=self._noise(1),
            reward=torch.tensor([float(dish)]),
            done=~self.mask.any().reshape(1),
        )


class Talk(_SeededEnv):
    """Says a sentence, which is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(said=NonTensor((), example_data="nothing"), length=Unbounded((1,)))
        self.action_spec = Categorical(3)
        self.reward_spec = Unbounded((1,))
        self.words: list[str] = []

    def _shown(self) -> dict[str, Any]:
        return {"said": " ".join(self.words) or "hush", "length": torch.tensor([float(len(self.words))])}

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.words = []
        return TensorDict(self._shown())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.words.append(["so", "then", "well"][int(tensordict["action"])])
        ended = torch.tensor([len(self.words) >= 4])
        return TensorDict({**self._shown(), "reward": torch.ones(1), "done": ended, "terminated": ended.clone()})


class Growing(_SeededEnv):
    """An observation that is longer with each step."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(path=Unbounded((-1, 2)), time=Unbounded((1,)))
        self.action_spec = Bounded(-1, 1, (2,))
        self.reward_spec = Unbounded((1,))
        self.path = torch.zeros(1, 2)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.path = self._noise(1, 2)
        return TensorDict(path=self.path, time=torch.zeros(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.path = torch.cat([self.path, self.path[-1:] + tensordict["action"]])
        length = len(self.path)
        return TensorDict(
            path=self.path,
            time=torch.tensor([float(length)]),
            reward=torch.ones(1),
            done=torch.tensor([length > 4]),
        )


class Unlike(_SeededEnv):
    """Two agents whose observations and actions differ: their specs are a lazy stack."""

    def __init__(self) -> None:
        super().__init__()
        ones = [Composite(eye=Unbounded((eye,)), ear=Unbounded((1,))) for eye in (2, 3)]
        self.observation_spec = Composite(agents=StackedComposite(*ones, dim=0))
        actions = [Composite(action=Bounded(-1, 1, (1,))), Composite(action=Bounded(-1, 1, (2,)))]
        self.full_action_spec = Composite(agents=StackedComposite(*actions, dim=0))
        self.full_reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1)), shape=(2,)))
        self.time = 0

    def _shown(self) -> list[TensorDict]:
        return [TensorDict(eye=self._noise(eye), ear=self._noise(1)) for eye in (2, 3)]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.time = 0
        return TensorDict(agents=LazyStackedTensorDict(*self._shown(), stack_dim=0))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.time += 1
        agents = []
        for own, given in zip(self._shown(), tensordict["agents"].unbind(0), strict=True):
            own["reward"] = given["action"].sum().reshape(1)
            agents.append(own)
        made = TensorDict(agents=LazyStackedTensorDict(*agents, stack_dim=0))
        made["done"] = torch.tensor([self.time >= 4])
        made["terminated"] = made["done"].clone()
        return made


class Choosers(_SeededEnv):
    """Two agents, of which one has more actions than the other: their specs are a lazy stack, their values are not."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(agents=Composite(eye=Unbounded((2, 2)), shape=(2,)))
        actions = [Composite(action=Categorical(2)), Composite(action=Categorical(5))]
        self.full_action_spec = Composite(agents=torch.stack(actions))
        self.full_reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1)), shape=(2,)))
        self.time = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.time = 0
        return TensorDict(agents=TensorDict(eye=self._noise(2, 2), batch_size=(2,)))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.time += 1
        action = tensordict["agents", "action"].unsqueeze(-1)
        agents = TensorDict(eye=self._noise(2, 2) + action, reward=action.float(), batch_size=(2,))
        ended = torch.tensor([self.time >= 4])
        return TensorDict(agents=agents, done=ended, terminated=ended.clone())


class Moved(EnvBase):
    """Has no state of its own: where it is comes from its TensorDict, of any batch size."""

    batch_locked = False

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(place=Unbounded((2,)))
        self.state_spec = Composite(place=Unbounded((2,)))
        self.action_spec = Bounded(-1, 1, (2,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        size = self.batch_size if tensordict is None else tensordict.batch_size
        place = torch.zeros(*size, 2) if tensordict is None else tensordict.get("place", torch.zeros(*size, 2))
        return TensorDict(place=place.clone(), batch_size=size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        place = tensordict["place"] + tensordict["action"]
        gone = place.abs().sum(-1, keepdim=True)
        flags = {"done": gone > 2.5, "terminated": gone > 2.5}
        return TensorDict({"place": place, "reward": -gone, **flags}, tensordict.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        pass


class Change(Transform):
    """Says by how much an observation has changed, for which it looks at the root that the step was given."""

    def __init__(self) -> None:
        super().__init__(in_keys=["square"], out_keys=["change"])

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict["change"] = next_tensordict["square"] - tensordict["square"]
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        tensordict_reset["change"] = torch.zeros_like(tensordict_reset["square"])
        return tensordict_reset

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        observation_spec["change"] = observation_spec["square"].clone()
        return observation_spec


class Noisy(Squares):
    """Draws from torch's global generator too."""

    def _noise(self, *shape: int) -> torch.Tensor:
        return super()._noise(*shape) + torch.rand(*self.batch_size, *shape)


def counted(length: int = 5) -> EnvBase:
    """State in the root, of every transform that keeps some there."""
    transforms = Compose(StepCounter(6), InitTracker(), RewardSum(), CatFrames(3, -1, in_keys=["square"]))
    return TransformedEnv(Squares(length), transforms)


def recurrent() -> EnvBase:
    primer = TensorDictPrimer(hidden=Unbounded((4,)))
    return TransformedEnv(Squares(), Compose(InitTracker(), primer))


def changing() -> EnvBase:
    return TransformedEnv(Squares(), Change())


def agents_counted() -> EnvBase:
    return TransformedEnv(Agents(), Compose(StepCounter(5), RewardSum(), InitTracker()))


def groups_counted() -> EnvBase:
    return TransformedEnv(Agents(root_flags=False, two_groups=True), Compose(StepCounter(5), InitTracker()))


def menu() -> EnvBase:
    return TransformedEnv(Menu(), ActionMask())


def menu_one_hot() -> EnvBase:
    return TransformedEnv(Menu(one_hot=True), ActionMask())


def cart_pole() -> EnvBase:
    norm = ObservationNorm(loc=0.1, scale=2.0, in_keys=["observation"])
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(norm, StepCounter(8), RewardSum()))


def pendulum() -> EnvBase:
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(DoubleToFloat(), StepCounter(7)))


def stateless_pendulum() -> EnvBase:
    return TransformedEnv(PendulumEnv(), StepCounter(5))


def pair() -> EnvBase:
    """A batch of its own."""
    return TransformedEnv(Squares(4, batch_size=(2,)), Compose(StepCounter(6), InitTracker()))


def batch() -> EnvBase:
    """A batch of TorchRL's, in transforms."""
    return TransformedEnv(SerialEnv(2, counted), RewardSum(in_keys=["reward"], out_keys=["total"]))


MAKERS: dict[str, Any] = {
    "squares": Squares,
    "counted": counted,
    "changing": changing,
    "agents": Agents,
    "agents-counted": agents_counted,
    "groups": groups_counted,
    "menu": menu,
    "menu-one-hot": menu_one_hot,
    "talk": Talk,
    "growing": Growing,
    "unlike": Unlike,
    "choosers": Choosers,
    "moved": Moved,
    "cart-pole": cart_pole,
    "pendulum": pendulum,
    "stateless-pendulum": stateless_pendulum,
    "pair": pair,
    "batch": batch,
}
"""Name -> maker of an env."""
