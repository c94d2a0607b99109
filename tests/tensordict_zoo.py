"""TensorDict envs whose every output can be told beforehand, as a user of ``EnvBase`` writes them.

Each takes an index, so that the rows of a batch of them differ, and the lengths of its episodes, over and over;
episodes end terminated and truncated in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from gymbridge.envs import EnvBase
from gymbridge.specs import Binary, Bounded, Categorical, Composite, NonTensor, Unbounded

__all__ = [
    "GROUPED",
    "TENSORDICT_ENVS",
    "WITH_STATES_OR_INFOS",
    "WORDS",
    "BatchUnlockedEnv",
    "BatchedEnv",
    "BatchedWholeEnv",
    "CountingTensorDictEnv",
    "DifferentiableEnv",
    "DtypesEnv",
    "DynamicShapeEnv",
    "EpisodicEnv",
    "FlagsEnv",
    "InfoEnv",
    "MultiGroupEnv",
    "NestedEnv",
    "NoObservationEnv",
    "OnlyGroupsEnv",
    "RaisingTensorDictEnv",
    "RecurrentEnv",
    "RewardsInGroupsEnv",
    "SeveralKeysEnv",
    "StatefulEnv",
    "StringsEnv",
    "TaskEnv",
]

WORDS = ("", "left", "right", "wait a while")
"""What the text of :class:`StringsEnv` and its actions are made of."""

FLAG: dict[str, Any] = {"n": 1, "dtype": torch.bool}


class EpisodicEnv(EnvBase):
    """Counts episodes and steps; a subclass says what is seen.

    Args:
        index: of the env in its batch.
        lengths: of the episodes, over and over, beginning with the one at ``index``.
        **options: those of ``EnvBase``.
    """

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5), **options: Any):
        super().__init__(**options)
        self.index = index
        self.lengths = lengths
        self.episode = -1
        self.t = 0
        self.generator = torch.Generator().manual_seed(index)
        self.action_spec = Binary(1)
        self.reward_spec = Unbounded((1,))

    def observe(self, action: float) -> TensorDict:
        """What is seen after an action; -1 is that of a reset."""
        raise NotImplementedError

    def action_of(self, tensordict: TensorDictBase) -> float:
        """The action as a number."""
        return float(tensordict["action"].sum())

    def outcome(self, action: float) -> dict[str, Any]:
        """Reward and flags."""
        terminated, truncated = self.ends()
        return {
            "reward": torch.tensor([10.0 * self.episode + self.t + action / 2]),
            "terminated": torch.tensor([terminated]),
            "truncated": torch.tensor([truncated]),
        }

    def ends(self) -> tuple[bool, bool]:
        """Whether the episode ends here: terminated, truncated."""
        ended = self.t >= self.lengths[(self.index + self.episode) % len(self.lengths)]
        terminated = ended and self.episode % 2 == 0
        return terminated, ended and not terminated

    def noise(self) -> torch.Tensor:
        """A random number of the env's own generator, ``[1]``."""
        return torch.rand(1, generator=self.generator)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        self.episode += 1
        self.t = 0
        return self.observe(-1.0)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.t += 1
        action = self.action_of(tensordict)
        made = self.observe(action)
        for key, value in self.outcome(action).items():
            made.set(key, value)
        return made

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.generator.manual_seed(seed)


class CountingTensorDictEnv(EpisodicEnv):
    """Shows a count and a random number.

    Args:
        index, lengths, **options: see :class:`EpisodicEnv`.
        categorical: actions are ``Categorical`` instead of ``Binary``.

    A reset takes ``start``, where the count begins.
    """

    def __init__(
        self, index: int = 0, lengths: Sequence[int] = (3, 1, 5), *, categorical: bool = False, **options: Any
    ):
        super().__init__(index, lengths, **options)
        self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64), noise=Bounded(0, 1, (1,)))
        if categorical:
            self.action_spec = Categorical(3)
        self.begins_at = 0

    def _reset(self, tensordict: TensorDictBase | None, *, start: int = 0, **kwargs: Any) -> TensorDict:
        self.begins_at = start
        return super()._reset(tensordict, **kwargs)

    def observe(self, action: float) -> TensorDict:
        count = torch.tensor([self.begins_at + self.t])
        return TensorDict({"count": count, "noise": self.noise()}, device=self.device)


class NestedEnv(EpisodicEnv):
    """Observation and action lie deep."""

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        arm = Composite(angle=Unbounded((2,), dtype=torch.float64), on=Binary(3))
        self.observation_spec = Composite(robot=Composite(arm=arm), clock=Unbounded((), dtype=torch.int32))
        self.action_spec = Composite(robot=Composite(torque=Bounded(-1, 1, (2,))))

    def action_of(self, tensordict: TensorDictBase) -> float:
        return float(tensordict["robot", "torque"].sum())

    def observe(self, action: float) -> TensorDict:
        arm = TensorDict(
            angle=torch.tensor([self.t, action], dtype=torch.float64),
            on=torch.tensor([1, 0, self.t % 2], dtype=torch.int8),
        )
        return TensorDict(robot=TensorDict(arm=arm), clock=torch.tensor(self.t, dtype=torch.int32))


class MultiGroupEnv(EpisodicEnv):
    """Two agents whose episodes end apart, beside flags at the root: done once both are.

    An agent that is done waits, with a reward of zero, until the env is reset.
    """

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        self.observation_spec = Composite(agents=Composite(seen=Unbounded((2, 3))))
        self.action_spec = Composite(agents=Composite(action=Categorical(3, (2,))))
        flags = Composite({name: Binary(shape=(2, 1), **FLAG) for name in ("done", "terminated", "truncated")})
        root = {name: Binary(shape=(1,), **FLAG) for name in ("done", "terminated", "truncated")}
        self.reward_spec = Composite(reward=Unbounded((1,)), agents=Composite(reward=Unbounded((2, 1))))
        self.done_spec = Composite({**root, "agents": flags})
        self.clocks = [0, 0]

    def length_of(self, agent: int) -> int:
        """Steps until an agent is done."""
        return self.lengths[(self.index + self.episode + agent) % len(self.lengths)]

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        self.clocks = [0, 0]
        return super()._reset(tensordict, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.t += 1
        actions = tensordict["agents", "action"].tolist()
        awake = [clock < self.length_of(agent) for agent, clock in enumerate(self.clocks)]
        self.clocks = [clock + moves for clock, moves in zip(self.clocks, awake, strict=True)]
        ended = torch.tensor([[clock >= self.length_of(agent)] for agent, clock in enumerate(self.clocks)])
        rewards = torch.tensor([[float(action + 1) * moves] for action, moves in zip(actions, awake, strict=True)])
        by_time = bool(self.episode % 2)
        made = self.observe(float(sum(actions)))
        made["reward"] = rewards.sum(0)
        made["agents", "reward"] = rewards
        for group, flags in (((), ended.all(0)), (("agents",), ended)):
            made[(*group, "terminated")] = flags & (not by_time)
            made[(*group, "truncated")] = flags & by_time
        return made

    def observe(self, action: float) -> TensorDict:
        seen = torch.tensor([[self.episode, clock, action] for clock in self.clocks], dtype=torch.float32)
        return TensorDict(agents=TensorDict(seen=seen))


class OnlyGroupsEnv(EnvBase):
    """Two agents and a referee, each with flags of its own; none at the root.

    Masks of the groups start those anew that they pick. Who is done waits, with a reward of zero, until it is reset.
    """

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__()
        self.index = index
        self.lengths = lengths
        names = ("done", "terminated", "truncated")
        shapes = {"agents": (2, 1), "referee": (1,)}
        self.observation_spec = Composite(
            agents=Composite(seen=Unbounded((2, 3))), referee=Composite(clock=Unbounded((1,), dtype=torch.int64))
        )
        self.action_spec = Composite(agents=Composite(action=Categorical(3, (2,))))
        self.reward_spec = Composite({group: Composite(reward=Unbounded(shape)) for group, shape in shapes.items()})
        self.done_spec = Composite(
            {group: Composite({name: Binary(shape=shape, **FLAG) for name in names}) for group, shape in shapes.items()}
        )
        self.episodes = [-1, -1, -1]  # the two agents' and the referee's
        self.clocks = [0, 0, 0]
        self.generator = torch.Generator().manual_seed(index)

    def ended(self) -> list[bool]:
        """Who is done."""
        members = enumerate(zip(self.episodes, self.clocks, strict=True))
        return [t >= self.lengths[(self.index + who + episode) % len(self.lengths)] for who, (episode, t) in members]

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        picked = [True, True, True]
        if tensordict is not None and tensordict.get(("agents", "_reset"), None) is not None:
            agents, referee = tensordict["agents", "_reset"], tensordict["referee", "_reset"]
            picked = [*agents.flatten().tolist(), *referee.tolist()]
        for who in range(3):
            if picked[who]:
                self.episodes[who] += 1
                self.clocks[who] = 0
        return self._made()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        awake = [not ended for ended in self.ended()]
        self.clocks = [clock + moves for clock, moves in zip(self.clocks, awake, strict=True)]
        made = self._made()
        actions = tensordict["agents", "action"].tolist()
        rewards = [float(action + 1) * moves for action, moves in zip(actions, awake, strict=False)]
        made["agents", "reward"] = torch.tensor(rewards).unsqueeze(-1)
        made["referee", "reward"] = torch.tensor([float(awake[2])])
        return made

    def _made(self) -> TensorDict:
        noise = torch.rand(1, generator=self.generator).item()
        seen = [[self.episodes[who], self.clocks[who], noise] for who in range(2)]
        ended = torch.tensor(self.ended())
        agents = TensorDict(seen=torch.tensor(seen), terminated=ended[:2].unsqueeze(-1))
        return TensorDict(agents=agents, referee=TensorDict(clock=torch.tensor(self.clocks[2:]), truncated=ended[2:]))

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.generator.manual_seed(seed)


class DynamicShapeEnv(EpisodicEnv):
    """Sees one to three points, more or fewer from step to step."""

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        self.observation_spec = Composite(points=Unbounded((-1, 3)), count=Unbounded((1,), dtype=torch.int64))

    def observe(self, action: float) -> TensorDict:
        points = torch.full((1 + (self.index + self.episode + self.t) % 3, 3), action)
        return TensorDict(points=points, count=torch.tensor([self.t]))


class StringsEnv(EpisodicEnv):
    """Sees a text beside a number.

    Args:
        index, lengths: see :class:`EpisodicEnv`.
        spoken: the action is a word, too.
    """

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5), *, spoken: bool = False):
        super().__init__(index, lengths)
        self.observation_spec = Composite(text=NonTensor((), example_data="nothing"), count=Unbounded((1,)))
        if spoken:
            self.action_spec = NonTensor((), example_data=WORDS[0])

    def action_of(self, tensordict: TensorDictBase) -> float:
        action = tensordict["action"]
        return float(WORDS.index(action)) if isinstance(action, str) else super().action_of(tensordict)

    def observe(self, action: float) -> TensorDict:
        text = f"episode {self.episode}, step {self.t}: {WORDS[int(action)]}"
        return TensorDict(text=NonTensorData(text), count=torch.tensor([float(self.t)]))


class BatchedEnv(EnvBase):
    """Two envs in one, which honours masks; rows that a mask leaves out are garbage.

    It remembers in ``asked`` which rows it was asked for.
    """

    partial = True

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5), num_envs: int = 2):
        super().__init__(batch_size=(num_envs,))
        self.index = index
        self.lengths = lengths
        self.partial_step = self.partial_reset = self.partial
        lead = self.batch_size
        self.observation_spec = Composite(
            x=Unbounded((*lead, 2)),
            small=Composite(count=Unbounded(lead, dtype=torch.uint8), shape=lead),
            shape=lead,
        )
        self.action_spec = Bounded(-1, 1, (*lead, 1))
        self.reward_spec = Unbounded((*lead, 1))
        self.episodes = torch.full(lead, -1)
        self.clocks = torch.zeros(lead, dtype=torch.int64)
        self.generators = [torch.Generator().manual_seed(index + row) for row in range(num_envs)]
        self.asked: list[tuple[str, list[bool]]] = []

    def lengths_now(self) -> torch.Tensor:
        """Length of each row's episode."""
        rows = torch.arange(self.numel())
        return torch.tensor(self.lengths)[(self.episodes + self.index + rows) % len(self.lengths)]

    def _picked(self, tensordict: TensorDictBase | None, name: str) -> torch.Tensor:
        mask = None if tensordict is None else tensordict.get(name, None)
        mask = torch.ones(self.batch_size, dtype=torch.bool) if mask is None else mask
        self.asked.append((name, mask.tolist()))
        return mask

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        picked = self._picked(tensordict, "_reset")
        self.episodes = self.episodes + picked
        self.clocks = torch.where(picked, 0, self.clocks)
        return self._seen(picked)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        picked = self._picked(tensordict, "_step")
        self.clocks = self.clocks + picked
        made = self._seen(picked)
        reward = 10 * self.episodes.unsqueeze(-1) + tensordict["action"]
        ended = (self.clocks >= self.lengths_now()) | ~picked
        by_time = self.episodes % 2 == 1
        made["reward"] = torch.where(picked.unsqueeze(-1), reward.to(torch.float32), 99.0)
        made["terminated"] = (ended & ~by_time).unsqueeze(-1)
        made["truncated"] = (ended & by_time).unsqueeze(-1)
        return made

    def _seen(self, picked: torch.Tensor) -> TensorDict:
        rows = [
            [float(self.episodes[row]), torch.rand(1, generator=self.generators[row]).item()] if picked[row] else [7, 7]
            for row in range(self.numel())
        ]
        count = torch.where(picked, self.clocks, 77).to(torch.uint8)
        small = TensorDict({"count": count}, self.batch_size)
        return TensorDict({"x": torch.tensor(rows), "small": small}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            for row, generator in enumerate(self.generators):
                generator.manual_seed(seed + row)


class BatchedWholeEnv(BatchedEnv):
    """Two envs that step, end and start together, and know no masks."""

    partial = False

    def lengths_now(self) -> torch.Tensor:
        return torch.tensor(self.lengths)[(self.episodes + self.index) % len(self.lengths)]

    def _picked(self, tensordict: TensorDictBase | None, name: str) -> torch.Tensor:
        if tensordict is not None and tensordict.get(name, None) is not None:
            raise AssertionError(f"{name}: a mask reached an env that knows none")
        return super()._picked(None, name)


class StatefulEnv(EnvBase):
    """A weight on a spring, whose state is in the TensorDict alone; the object has none.

    The entries under ``"params"``, those of the TensorDict that a reset is given or else the env's own, hold for the
    episode.
    """

    def __init__(self, index: int = 0):
        super().__init__()
        params = Composite(stiffness=Bounded(0.0, 4.0, ()), max_steps=Bounded(1, 6, (), dtype=torch.int64))
        self.observation_spec = Composite(
            position=Bounded(-9.0, 9.0, (1,)),
            velocity=Bounded(-9.0, 9.0, (1,)),
            clock=Bounded(0, 6, (), dtype=torch.int64),
            params=params,
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((1,))
        self.index = index

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        params = None if tensordict is None else tensordict.get("params", None)
        if params is None:
            params = TensorDict(stiffness=torch.tensor(0.5 * self.index), max_steps=torch.tensor(2 + self.index))
        position = params["stiffness"].reshape(1) / 2
        return TensorDict(
            position=position,
            velocity=torch.zeros(1),
            clock=torch.tensor(0),
            params=params.clone(),
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        params, clock = tensordict["params"], tensordict["clock"] + 1
        force = tensordict["action"] - params["stiffness"] * tensordict["position"]
        velocity = (tensordict["velocity"] + 0.1 * force).clamp(-9, 9)
        position = (tensordict["position"] + 0.1 * velocity).clamp(-9, 9)
        return TensorDict(
            position=position,
            velocity=velocity,
            clock=clock.clamp(max=6),
            params=params.clone(),
            reward=-position.abs(),
            truncated=(clock >= params["max_steps"]).reshape(1),
        )

    def _set_seed(self, seed: int | None) -> None:
        pass


class RecurrentEnv(EpisodicEnv):
    """Sees what the policy wrote as its next hidden state, a key of the state spec.

    Args:
        index, lengths: see :class:`EpisodicEnv`.
        forgets: a reset writes a hidden state of zeros.
    """

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5), *, forgets: bool = False):
        super().__init__(index, lengths)
        self.observation_spec = Composite(seen=Unbounded((2,)), before=Unbounded((2,)))
        self.state_spec = Composite(hidden=Unbounded((2,)))
        self.forgets = forgets

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        made = super()._reset(tensordict, **kwargs)
        return made.set("hidden", torch.zeros(2)) if self.forgets else made

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        made = super()._step(tensordict)
        made["before"] = tensordict["hidden"].clone()
        shown = tensordict.get(("next", "hidden"), None)
        return made if shown is None else made.set("seen", shown.clone())

    def observe(self, action: float) -> TensorDict:
        return TensorDict(seen=torch.full((2,), action), before=torch.zeros(2))


class DifferentiableEnv(EnvBase):
    """Observation and reward are smooth functions of the state, the action and ``weight``, which can be learnt."""

    def __init__(self, index: int = 0, length: int = 4):
        super().__init__()
        self.observation_spec = Composite(x=Unbounded((2,)), clock=Bounded(0, length, (1,)))
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-1, 1, (2,))
        self.reward_spec = Unbounded((1,))
        self.index = index
        self.length = length
        self.weight = torch.nn.Parameter(torch.tensor([0.5, 1.0 + index]))

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        return TensorDict(x=self.weight * (1 + self.index), clock=torch.zeros(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        x = torch.tanh(self.weight * tensordict["x"]) + tensordict["action"]
        clock = (tensordict["clock"] + 1).clamp(max=self.length)
        return TensorDict(
            x=x, clock=clock, reward=-x.square().sum(-1, keepdim=True), terminated=clock.detach() >= self.length
        )

    def _set_seed(self, seed: int | None) -> None:
        pass


class BatchUnlockedEnv(EnvBase):
    """Takes TensorDicts of any batch size, in which all its state is."""

    batch_locked = False

    def __init__(self, index: int = 0, length: int = 3):
        super().__init__()
        self.observation_spec = Composite(x=Unbounded((2,)), clock=Bounded(0, length, (1,), dtype=torch.int64))
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-1, 1, (2,))
        self.reward_spec = Unbounded((1,))
        self.index = index
        self.length = length

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        lead = self.batch_size if tensordict is None else tensordict.batch_size
        x = torch.full((*lead, 2), float(self.index))
        return TensorDict({"x": x, "clock": torch.zeros((*lead, 1), dtype=torch.int64)}, lead)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        x, clock = tensordict["x"] / 2 + tensordict["action"], (tensordict["clock"] + 1).clamp(max=self.length)
        made = {"x": x, "clock": clock, "reward": x.sum(-1, keepdim=True), "terminated": clock >= self.length}
        return TensorDict(made, tensordict.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        pass


class InfoEnv(EpisodicEnv):
    """Has infos, which are zero where an env was not stepped."""

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        info = Composite(t=Unbounded((), dtype=torch.int64), deep=Composite(noise=Unbounded((2,))))
        self.observation_spec = Composite(x=Unbounded((1,)), info=info)

    def observe(self, action: float) -> TensorDict:
        deep = TensorDict(noise=torch.cat([self.noise(), torch.tensor([action])]))
        return TensorDict(x=torch.tensor([action]), info=TensorDict(t=torch.tensor(100 + self.t), deep=deep))


class SeveralKeysEnv(EpisodicEnv):
    """Two rewards and two actions."""

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        self.observation_spec = Composite(a=Composite(x=Unbounded((1,))), b=Composite(x=Unbounded((2,))))
        self.action_spec = Composite(a=Composite(action=Binary(1)), b=Composite(action=Bounded(-1, 1, (2,))))
        self.reward_spec = Composite(reward=Unbounded((1,)), bonus=Unbounded((1,)))

    def action_of(self, tensordict: TensorDictBase) -> float:
        return float(tensordict["a", "action"].sum() + tensordict["b", "action"].sum())

    def observe(self, action: float) -> TensorDict:
        parts = {name: TensorDict(x=torch.full((size,), action)) for name, size in (("a", 1), ("b", 2))}
        return TensorDict(parts)

    def outcome(self, action: float) -> dict[str, Any]:
        return {**super().outcome(action), "bonus": torch.tensor([action])}


class RewardsInGroupsEnv(SeveralKeysEnv):
    """Rewards that stand beside the actions, and flags at the root."""

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        self.reward_spec = Composite({name: Composite(reward=Unbounded((1,))) for name in ("a", "b")})

    def outcome(self, action: float) -> dict[Any, Any]:
        outcome: dict[Any, Any] = super().outcome(action)
        rewards = {("a", "reward"): outcome.pop("reward"), ("b", "reward"): outcome.pop("bonus")}
        return {**outcome, **rewards}


class DtypesEnv(EpisodicEnv):
    """Leaves that are easily forgotten: small floats, unsigned integers, bools, scalars and tensors of no elements."""

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        self.observation_spec = Composite(
            half=Unbounded((2,), dtype=torch.bfloat16),
            unsigned=Bounded(0, 65535, (2,), dtype=torch.uint16),
            switch=Binary(3, dtype=torch.bool),
            scalar=Unbounded((), dtype=torch.float64),
            nothing=Unbounded((0, 3)),
            wide=Unbounded((2, 1, 2), dtype=torch.int16),
        )

    def observe(self, action: float) -> TensorDict:
        return TensorDict(
            half=torch.tensor([action, self.t / 3], dtype=torch.bfloat16),
            unsigned=torch.tensor([65535 - self.t, self.episode], dtype=torch.uint16),
            switch=torch.tensor([True, False, self.t % 2 == 0]),
            scalar=torch.tensor(self.t / 7, dtype=torch.float64),
            nothing=torch.zeros(0, 3),
            wide=torch.full((2, 1, 2), -self.t, dtype=torch.int16),
        )


class NoObservationEnv(EpisodicEnv):
    """Shows nothing but rewards and flags."""

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        self.observation_spec = Composite()

    def observe(self, action: float) -> TensorDict:
        return TensorDict({})


class FlagsEnv(CountingTensorDictEnv):
    """Returns some of the three flags, the others are completed.

    Args:
        index, lengths: see :class:`EpisodicEnv`.
        flags: which.
        last_dim: with their last dim.
    """

    def __init__(
        self,
        index: int = 0,
        lengths: Sequence[int] = (3, 1, 5),
        *,
        flags: Sequence[str] = ("done",),
        last_dim: bool = True,
    ):
        super().__init__(index, lengths)
        self.flags = flags
        self.last_dim = last_dim

    def outcome(self, action: float) -> dict[str, Any]:
        terminated, truncated = self.ends()
        ended = terminated or truncated
        alone = len(self.flags) == 1
        values = {
            "done": ended,
            "terminated": ended if alone else terminated,
            "truncated": ended if alone else truncated,
        }
        shape = (1,) if self.last_dim else ()
        flags = {name: torch.full(shape, values[name]) for name in self.flags}
        return {"reward": super().outcome(action)["reward"], **flags}


class TaskEnv(EpisodicEnv):
    """One of several tasks: the index says which keys and shapes it has."""

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(index, lengths)
        self.observation_spec = Composite({"x": Unbounded((index + 1,)), f"of_task_{index}": Unbounded((1,))})
        self.action_spec = Bounded(-1, 1, (index + 1,))

    def observe(self, action: float) -> TensorDict:
        x = torch.full((self.index + 1,), action)
        return TensorDict({"x": x, f"of_task_{self.index}": torch.tensor([float(self.t)])})


class RaisingTensorDictEnv(CountingTensorDictEnv):
    """Raises in a step or in a reset, when its attributes say so."""

    raise_in_step: Exception | None = None
    raise_in_reset: Exception | None = None

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        if self.raise_in_reset is not None:
            raise self.raise_in_reset
        return super()._reset(tensordict, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        if self.raise_in_step is not None:
            raise self.raise_in_step
        return super()._step(tensordict)


TENSORDICT_ENVS: dict[str, Callable[[int], EnvBase]] = {
    "counting": CountingTensorDictEnv,
    "categorical": lambda index: CountingTensorDictEnv(index, categorical=True),
    "on the cpu": lambda index: CountingTensorDictEnv(index, device="cpu"),
    "nested": NestedEnv,
    "groups and root": MultiGroupEnv,
    "groups alone": OnlyGroupsEnv,
    "rewards in groups": RewardsInGroupsEnv,
    "dynamic shape": DynamicShapeEnv,
    "strings": StringsEnv,
    "spoken": lambda index: StringsEnv(index, spoken=True),
    "batched": BatchedEnv,
    "batched whole": BatchedWholeEnv,
    "stateful": StatefulEnv,
    "recurrent": RecurrentEnv,
    "forgets": lambda index: RecurrentEnv(index, forgets=True),
    "differentiable": DifferentiableEnv,
    "batch unlocked": BatchUnlockedEnv,
    "infos": InfoEnv,
    "several keys": SeveralKeysEnv,
    "dtypes": DtypesEnv,
    "no observation": NoObservationEnv,
    "only done": lambda index: FlagsEnv(index, flags=("done",)),
    "only terminated": lambda index: FlagsEnv(index, flags=("terminated",)),
    "only truncated": lambda index: FlagsEnv(index, flags=("truncated",)),
    "done and truncated": lambda index: FlagsEnv(index, flags=("done", "truncated")),
    "flags of no dims": lambda index: FlagsEnv(index, flags=("terminated", "truncated"), last_dim=False),
    "tasks": TaskEnv,
    "raising": RaisingTensorDictEnv,
}
"""Name -> maker of the env of an index."""

GROUPED = ("groups and root", "groups alone", "rewards in groups")
"""Those with rewards or flags in groups."""

WITH_STATES_OR_INFOS = ("recurrent", "forgets", "infos")
"""Those with leaves that a sleeping env keeps in the root and that its ``next`` has otherwise: states and infos."""
