"""``from_torchrl`` against TorchRL itself: the same makers, seeds and actions in its batches and in gymbridge's."""

from __future__ import annotations

import doctest
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torchrl")

import cloudpickle
import gymnasium as gym
import torch
import torchrl.envs
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_leaf_nontensor
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torchrl.data import Unbounded
from torchrl.envs import CatFrames, GymEnv, ObservationNorm, PendulumEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextObservationDelta
from torchrl.modules import MaskedCategorical
from torchrl_envs import MAKERS, Agents, Moved, Noisy, Squares, counted, groups_counted, menu, recurrent

import gymbridge.interop.torchrl_env
from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.contract import check
from gymbridge.envs import EnvBase, EnvCreator, check_env_specs
from gymbridge.errors import EnvOutputError
from gymbridge.interop import torchrl as face
from gymbridge.interop.torchrl_env import TorchRLEnv, TorchRLEnvMaker, from_torchrl, next_torchrl_seed
from gymbridge.vector import TensorDictVectorEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find the tests

NUM_ENVS = 3
NUM_STEPS = 14
SEED = 5

Maker = Callable[..., Any]
Leaves = dict[tuple[str, ...], Any]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def pool(makers: Sequence[Maker], **options: Any) -> AsyncEnvPool:
    return AsyncEnvPool([*makers], stack="maybe_dense", **options)


def serial(makers: Sequence[Maker], **options: Any) -> SerialEnv:
    return SerialEnv(len(makers), [*makers], **options)


def parallel(makers: Sequence[Maker], **options: Any) -> ParallelEnv:
    return ParallelEnv(len(makers), [*makers], **options)


IN_THIS_PROCESS: dict[str, Callable[..., Any]] = {
    "SerialEnv": serial,
    "pool-threading": partial(pool, backend="threading"),
    "pool-asyncio": partial(pool, backend="asyncio"),
}
IN_WORKERS: dict[str, Callable[..., Any]] = {
    "ParallelEnv": parallel,
    "pool-multiprocessing": partial(pool, backend="multiprocessing", envs_per_worker=2),
}


# ---------------------------------------------------------------- equal actions, and how results are compared


def leaves(tensordict: TensorDictBase, path: tuple[str, ...] = ()) -> Leaves:
    """Every leaf by its path; what lies in a lazy stack has its number in the path."""
    if isinstance(tensordict, LazyStackedTensorDict):
        items: Any = enumerate(tensordict.unbind(tensordict.stack_dim))
    else:
        items = tensordict.items()
    found: Leaves = {}
    for key, value in items:
        own = (*path, str(key))
        if isinstance(value, TensorDictBase) and not is_leaf_nontensor(type(value)):
            found |= leaves(value, own)
        else:
            found[own] = value
    return found


def rows(tensordict: TensorDictBase) -> LazyStackedTensorDict:
    """A batch as a lazy stack, whether it is one already or not."""
    return LazyStackedTensorDict(*tensordict.unbind(0), stack_dim=0)


def assert_equal_steps(ours: TensorDictBase, theirs: TensorDictBase, *, batched: bool) -> None:
    """The same leaves with the same values, but for ``truncated``, which gymbridge completes where TorchRL has none."""
    if batched:
        ours, theirs = rows(ours), rows(theirs)
    own, other = leaves(ours), leaves(theirs)
    assert not other.keys() - own.keys()
    assert all(key[-1] == "truncated" for key in own.keys() - other.keys())
    for key, value in other.items():
        if isinstance(value, torch.Tensor):
            assert isinstance(own[key], torch.Tensor), key
            assert own[key].dtype == value.dtype, key
            assert own[key].shape == value.shape, key
            assert torch.equal(own[key], value), key
        else:
            assert own[key].tolist() == value.tolist(), key
            assert own[key].batch_size == value.batch_size, key


def assert_equal_rollouts(ours: TensorDictBase, theirs: TensorDictBase, *, batched: bool = True) -> None:
    assert ours.batch_size == theirs.batch_size
    for own, other in zip(ours.unbind(-1), theirs.unbind(-1), strict=True):
        assert_equal_steps(own, other, batched=batched)


class Replay:
    """Gives each env the same actions again: those drawn of TorchRL's spec or, by an action mask, what that leaves."""

    def __init__(self, actions: Sequence[TensorDictBase]):
        self._actions = iter(actions)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = next(self._actions)
        if "action_mask" in tensordict.keys():
            mask = tensordict["action_mask"]
            first, last = mask.float().argmax(-1), 3 - mask.flip(-1).float().argmax(-1)
            chosen = first if mask.sum() % 2 else last
            is_one_hot = action["action"].shape == mask.shape
            tensordict["action"] = (
                torch.nn.functional.one_hot(chosen, 4).to(action["action"].dtype) if is_one_hot else chosen
            )
            return tensordict
        if ("agents", "0") in {key[:2] for key in tensordict.keys(True) if isinstance(key, tuple)}:
            for index in range(2):
                own = [row["agents"].unbind(0)[index]["action"] for row in action.unbind(0)]
                tensordict["agents", str(index), "action"] = torch.stack(own)
            return tensordict
        return tensordict.update(action)


def drawn(spec: Any, num_steps: int = NUM_STEPS) -> list[TensorDictBase]:
    """So many steps' actions."""
    torch.manual_seed(SEED)
    return [spec.rand() for _ in range(num_steps)]


def seeded_rollout(env: Any, actions: Sequence[TensorDictBase]) -> TensorDictBase:
    """A rollout that runs through the ends of episodes."""
    env.set_seed(SEED)
    torch.manual_seed(SEED)  # which TorchRL's set_seed does not do
    steps: TensorDictBase = env.rollout(
        len(actions), Replay(actions), break_when_any_done=False, return_contiguous=False
    )
    return steps


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    """Closes at the test's end what it is given."""
    given: list[Any] = []

    def keep(env: Any) -> Any:
        given.append(env)
        return env

    yield keep
    for env in reversed(given):
        env.close(raise_if_closed=False)


def assert_like_torchrls(name: str, build: Callable[..., Any], closing: Callable[[Any], Any]) -> None:
    theirs = closing(torchrl.envs.SerialEnv(NUM_ENVS, MAKERS[name]))
    actions = drawn(theirs.full_action_spec)
    expected = seeded_rollout(theirs, actions)
    ends = [key for key in leaves(expected) if key[-1] == "done"]
    assert any(leaves(expected)[key].any() for key in ends)  # or there would be no resets to compare
    ours = closing(build([from_torchrl(MAKERS[name])] * NUM_ENVS))
    assert_equal_rollouts(seeded_rollout(ours, actions), expected)


@pytest.mark.parametrize("engine", IN_THIS_PROCESS)
@pytest.mark.parametrize("name", MAKERS)
def test_rollouts_are_torchrls(name: str, engine: str, closing: Callable[[Any], Any]) -> None:
    """Through ends and resets: observations, rewards, flags, states of transforms, groups and data of any kind."""
    assert_like_torchrls(name, IN_THIS_PROCESS[engine], closing)


@pytest.mark.parametrize("engine", IN_WORKERS)
@pytest.mark.parametrize("name", ["changing", "groups", "unlike", "pair"])
def test_rollouts_in_workers_are_torchrls(name: str, engine: str, closing: Callable[[Any], Any]) -> None:
    assert_like_torchrls(name, IN_WORKERS[engine], closing)


@pytest.mark.parametrize("engine", IN_WORKERS)
def test_unlike_envs_in_workers_are_each_as_alone(engine: str, closing: Callable[[Any], Any]) -> None:
    """All envs at once, a multi-task batch, each against the TorchRL env alone."""
    makers = [maker for name, maker in MAKERS.items() if name not in ("pair", "batch", "unlike")]
    theirs = [closing(maker()) for maker in makers]
    actions = [drawn(env.full_action_spec) for env in theirs]
    ours = closing(IN_WORKERS[engine]([from_torchrl(maker) for maker in makers]))
    for row, env in enumerate(theirs):
        env.set_seed(SEED + row)
    ours.seed_rows([SEED + row for row in range(len(makers))])
    policies = [Replay(own) for own in actions]
    others = [Replay(own) for own in actions]

    def policy(tensordict: Any) -> TensorDictBase:
        return LazyStackedTensorDict(*map(lambda own, row: own(row), policies, tensordict.unbind(0)), stack_dim=0)

    steps = ours.rollout(NUM_STEPS, policy, break_when_any_done=False, return_contiguous=False)
    for row, (env, own) in enumerate(zip(theirs, others, strict=True)):
        expected = env.rollout(NUM_STEPS, own, break_when_any_done=False, return_contiguous=False)
        assert any(value.any() for key, value in leaves(expected).items() if key[-1] == "done")
        for step in range(NUM_STEPS):
            assert_equal_steps(rows(steps[..., step])[row], expected[..., step], batched=False)


@pytest.mark.parametrize("name", MAKERS)
def test_an_env_alone_is_torchrls(name: str, closing: Callable[[Any], Any]) -> None:
    """With random actions too, which the TorchRL env draws, so that its action mask holds."""
    theirs, ours = closing(MAKERS[name]()), closing(from_torchrl(MAKERS[name]()))
    assert isinstance(ours, TorchRLEnv)
    results = []
    for env in (ours, theirs):
        next_seed = env.set_seed(SEED)
        torch.manual_seed(SEED)
        steps = env.rollout(NUM_STEPS, break_when_any_done=False, return_contiguous=False)
        results.append((steps, next_seed))
    assert results[0][1] == results[1][1]
    assert_equal_rollouts(results[0][0], results[1][0], batched=False)


@pytest.mark.parametrize("name", MAKERS)
def test_specs_are_the_envs(name: str, closing: Callable[[Any], Any]) -> None:
    """Keys, shapes, dtypes, batch size, device and lock; and what the env gives is as they say."""
    theirs, ours = MAKERS[name](), closing(from_torchrl(MAKERS[name]()))
    assert (ours.batch_size, ours.device, ours.batch_locked) == (theirs.batch_size, theirs.device, theirs.batch_locked)
    if name not in ("unlike", "choosers"):  # lazy stacks of specs, of which TorchRL's says another dtype
        for kind in ("observation", "action", "reward", "state"):
            own, other = getattr(ours, f"full_{kind}_spec"), getattr(theirs, f"full_{kind}_spec")
            assert {*own.keys(True, True)} == {*other.keys(True, True)}
            for key in own.keys(True, True):
                assert (own[key].shape, own[key].dtype) == (other[key].shape, other[key].dtype)
                assert own[key].device == other[key].device or own[key].dtype is None
        assert {*ours.done_keys} >= {*theirs.done_keys}
    if name != "stateless-pendulum":  # which hands on the memory of the parameters that it is given
        check_env_specs(ours)


# ---------------------------------------------------------------- policies


def masked_policy(action_key: str = "action") -> ProbabilisticTensorDictSequential:
    def logits(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(4.0).expand(mask.shape), mask

    return ProbabilisticTensorDictSequential(
        TensorDictModule(logits, in_keys=["action_mask"], out_keys=["logits", "mask"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits", "mask"],
            out_keys=[action_key],
            distribution_class=MaskedCategorical,
            default_interaction_type="random",
        ),
    )


@pytest.mark.parametrize("engine", [serial, parallel], ids=["SerialEnv", "ParallelEnv"])
def test_masked_policies_draw_what_they_draw_over_torchrls(
    engine: Callable[..., Any], closing: Callable[[Any], Any]
) -> None:
    results = []
    for env in (closing(engine([from_torchrl(menu)] * NUM_ENVS)), closing(torchrl.envs.SerialEnv(NUM_ENVS, menu))):
        env.set_seed(SEED)
        torch.manual_seed(SEED)
        results.append(env.rollout(NUM_STEPS, masked_policy(), break_when_any_done=False))
    assert results[1]["next", "done"].sum() >= NUM_ENVS  # whole meals were had, else a wrong mask would not show
    assert_equal_rollouts(*results)


@pytest.mark.parametrize("engine", [serial, parallel], ids=["SerialEnv", "ParallelEnv"])
def test_recurrent_states_go_round_as_with_torchrl(engine: Callable[..., Any], closing: Callable[[Any], Any]) -> None:
    """A ``TensorDictPrimer`` makes the state, the policy writes the next one under ``"next"``, a reset begins anew."""

    def remember(tensordict: TensorDictBase) -> TensorDictBase:
        hidden = tensordict["hidden"]
        tensordict["action"] = tensordict["count"].squeeze(-1) % 3
        tensordict["next", "hidden"] = hidden + tensordict["square"].sum(-1, keepdim=True) + 1
        return tensordict

    ours, theirs = engine([from_torchrl(recurrent)] * NUM_ENVS), torchrl.envs.SerialEnv(NUM_ENVS, recurrent)
    results = []
    for env in (closing(ours), closing(theirs)):
        env.set_seed(SEED)
        results.append(env.rollout(NUM_STEPS, remember, break_when_any_done=False))
    assert results[1]["next", "done"].any()
    assert (results[1]["hidden"].abs().sum(-1) > 0).any()
    assert_equal_rollouts(*results)


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("name", ["squares", "counted", "agents-counted", "pair", "batch", "cart-pole"])
def test_parts_are_reset_and_stepped_as_torchrls(name: str, closing: Callable[[Any], Any]) -> None:
    """``"_reset"`` and ``"_step"`` masks, drawn anew each time."""
    theirs = closing(torchrl.envs.SerialEnv(NUM_ENVS, MAKERS[name]))
    ours = closing(SerialEnv(NUM_ENVS, from_torchrl(MAKERS[name])))
    actions = drawn(theirs.full_action_spec, 8)
    pairs = []
    for env in (ours, theirs):
        env.set_seed(SEED)
        pairs.append([env.reset()])
    generator = torch.Generator().manual_seed(SEED)
    for action in actions:
        size = theirs.batch_size[:1]
        asleep = torch.rand(size, generator=generator) < 0.4
        again = torch.rand(size, generator=generator) < 0.4
        for env, seen in zip((ours, theirs), pairs, strict=True):
            root = seen[-1].clone().update(action)
            root["_step"] = (~asleep).reshape(-1, *[1] * (len(theirs.batch_size) - 1)).expand(theirs.batch_size)
            stepped = env.step(root)
            following = env.step_mdp(stepped).exclude("_step", *env.action_keys)
            done = following.get("done")
            following["_reset"] = (
                done | again.reshape(-1, *[1] * (done.ndim - 1)) if done.any() or again.any() else done
            )
            first = env.reset(following) if following["_reset"].any() else following.exclude("_reset")
            seen += [stepped["next"], first]
    shown = list(zip(*pairs, strict=True))
    assert len(shown) == 1 + 2 * len(actions)
    for own, other in shown:
        assert_equal_steps(own, other, batched=True)


def test_agents_are_reset_each_for_itself(closing: Callable[[Any], Any]) -> None:
    """Masks of groups, in the shape of their flags, reach the env; other agents go on."""
    theirs, ours = closing(groups_counted()), closing(from_torchrl(groups_counted()))
    roots = []
    for env in (ours, theirs):
        env.set_seed(SEED)
        torch.manual_seed(SEED)
        td = env.rollout(2, break_when_any_done=False)[..., -1]
        root = env.step_mdp(td).exclude(*env.action_keys)
        root["walkers", "_reset"] = torch.tensor([[True], [False], [True]])
        root["flyers", "_reset"] = torch.tensor([[False], [True]])
        roots.append(env.reset(root))
    assert roots[1]["walkers", "step_count"].flatten().tolist() == [0, 2, 0]
    assert_equal_steps(*roots, batched=False)


def test_an_env_without_a_locked_batch_takes_any(closing: Callable[[Any], Any]) -> None:
    """Of each batch size that it is given; with masks too."""
    theirs, ours = Moved(), closing(from_torchrl(Moved()))
    results = []
    for env in (ours, theirs):
        td = env.reset(TensorDict(place=torch.ones(4, 2), batch_size=[4]))
        td["action"] = torch.full((4, 2), 0.25)
        td = env.step(td)
        again = td["next"].exclude("reward").clone()
        again["action"] = torch.full((4, 2), 0.5)
        again["_step"] = torch.tensor([True, False, True, False])
        results.append((td, env.step(again)))
    assert results[0][0]["next", "place"].tolist() == [[1.25, 1.25]] * 4
    assert_equal_steps(results[0][0], results[1][0], batched=True)
    own, other = (each[1]["next"] for each in results)
    for row in (0, 2):
        assert_equal_steps(own[row], other[row], batched=False)
    assert own["place"][1].tolist() == [1.25, 1.25]  # as everywhere here; TorchRL has zeros


# ---------------------------------------------------------------- resets that are given something


@pytest.mark.parametrize("build", [lambda make: make(), lambda make: SerialEnv(1, make)], ids=["alone", "SerialEnv"])
def test_a_state_steers_a_reset(build: Callable[..., Any], closing: Callable[[Any], Any]) -> None:
    env = closing(build(from_torchrl(Moved)))
    place = torch.tensor([0.5, 1.0]).expand(*env.batch_size, 2)
    assert torch.equal(env.reset(TensorDict(place=place, batch_size=env.batch_size))["place"], place)
    assert not env.reset()["place"].any()


def test_a_state_from_an_episodes_end_does_not(closing: Callable[[Any], Any]) -> None:
    """TorchRL hides it from the reset that its rollouts make; here any reset with flags that say so has it hidden."""
    env = closing(from_torchrl(PendulumEnv()))
    td = env.reset()
    ended = td.clone()
    ended["done"] = ended["terminated"] = torch.ones(1, dtype=torch.bool)
    assert torch.equal(env.reset(td, set_state=True)["th"], td["th"])
    assert not torch.equal(env.reset(ended)["th"], td["th"])
    assert not torch.equal(env.reset(td, set_state=False)["th"], td["th"])


def test_arguments_of_a_reset_reach_the_envs(closing: Callable[[Any], Any]) -> None:
    env = closing(SerialEnv(2, from_torchrl(lambda: GymEnv("CartPole-v1"))))
    first, again, other = (env.reset(list_of_kwargs=[{"seed": seed}, {"seed": 7}])["observation"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])


# ---------------------------------------------------------------- seeds


def test_seeds_are_those_of_torchrls_batches(closing: Callable[[Any], Any]) -> None:
    """Each env's seed, and the next one that is free, batches in batches included."""
    theirs = closing(torchrl.envs.SerialEnv(4, Squares))
    ours = [
        SerialEnv(4, from_torchrl(Squares)),
        SerialEnv(2, from_torchrl(partial(torchrl.envs.SerialEnv, 2, Squares))),
        SerialEnv(2, lambda: SerialEnv(2, from_torchrl(Squares))),
        AsyncEnvPool([from_torchrl(Squares)] * 4),
    ]
    for static in (False, True):
        following = theirs.set_seed(SEED, static_seed=static)
        expected = [env.seed_given for env in theirs._envs]
        assert len({*expected}) == (1 if static else 4)
        for env in ours:
            assert closing(env).set_seed(SEED, static_seed=static) == following
            given = env.seed_given
            flat = [seed for each in given for seed in (each if isinstance(each, list) else [each])]
            assert flat == expected


def test_a_batch_with_other_envs_counts_seeds_as_ever(closing: Callable[[Any], Any]) -> None:
    env = closing(SerialEnv(3, [from_torchrl(Squares), from_torchrl(Squares), "CartPole-v1"]))
    assert env.set_seed(SEED) == SEED + 3
    assert env.engine.envs[1].seed_given == SEED + 1


def test_what_draws_from_torch_is_torchrls_with_a_process_for_each(closing: Callable[[Any], Any]) -> None:
    """Both seed torch in each worker."""
    ours = closing(ParallelEnv(2, from_torchrl(Noisy), num_workers=2))
    theirs = closing(torchrl.envs.ParallelEnv(2, Noisy, mp_start_method="spawn"))
    actions = drawn(theirs.full_action_spec)
    assert_equal_rollouts(seeded_rollout(ours, actions), seeded_rollout(theirs, actions))


def test_next_seed_is_torchrls() -> None:
    for seed in (0, 1, 2**31, 2**40):
        assert next_torchrl_seed(seed) == Squares().set_seed(seed)


# ---------------------------------------------------------------- states, attributes, the end


def normed(loc: float = 0.0) -> torchrl.envs.EnvBase:
    return TransformedEnv(Squares(), ObservationNorm(loc=loc, scale=1.0, in_keys=["square"]))


@pytest.mark.parametrize("engine", [serial, parallel], ids=["SerialEnv", "ParallelEnv"])
def test_state_dicts_are_the_envs(engine: Callable[..., Any], closing: Callable[[Any], Any]) -> None:
    env = closing(engine([from_torchrl(normed)] * 2, create_env_kwargs=[{"loc": 1.0}, {"loc": 2.0}]))
    state = env.state_dict()
    theirs = normed(2.0).state_dict()
    assert {*state} == {"worker0", "worker1"}
    assert state["worker1"].keys() == theirs.keys()
    assert all(torch.equal(state["worker1"][key], theirs[key]) for key in theirs)
    env.load_state_dict(state["worker1"])
    assert all(torch.equal(env.state_dict()["worker0"][key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("engine", [serial, parallel], ids=["SerialEnv", "ParallelEnv"])
def test_attributes_and_methods_are_the_envs(engine: Callable[..., Any], closing: Callable[[Any], Any]) -> None:
    env = closing(engine([from_torchrl(counted)] * 2, create_env_kwargs=[{"length": 4}, {"length": 7}]))
    assert env.length == [4, 7]
    assert env.times(2) == [8, 14]
    assert env.names == [["left", "right"]] * 2
    env.set_attr("length", [1, 2])
    assert env.length == [1, 2]
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = env.nothing_like_it


def test_attributes_of_a_gymnasium_env_inside(closing: Callable[[Any], Any]) -> None:
    env = closing(SerialEnv(2, from_torchrl(lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter()))))
    assert env.gravity == [9.8, 9.8]
    env.set_attr("gravity", [1.0, 2.0])
    assert [own.env.unwrapped.gravity for own in env.engine.envs] == [1.0, 2.0]
    assert env.gravity == [1.0, 2.0]


def test_close_closes_the_env() -> None:
    theirs = counted()
    env = SerialEnv(1, from_torchrl(theirs))
    env.reset()
    env.close()
    assert theirs.is_closed
    alone = from_torchrl(counted())
    with alone:
        alone.reset()
    assert alone.env.is_closed
    with pytest.raises(RuntimeError, match="closed already"):
        alone.close()


def test_an_env_moves_with_its_device(closing: Callable[[Any], Any]) -> None:
    """TorchRL gives the TensorDict a device, and its specs."""
    env = closing(from_torchrl(Squares()))
    assert env.device is None
    assert env.to("cpu") is env
    assert env.env.device == torch.device("cpu")
    td = env.rand_step(env.reset())
    assert td["next"].device == torch.device("cpu")
    assert {leaf.device for leaf in env.full_observation_spec.values()} == {torch.device("cpu")}


# ---------------------------------------------------------------- makers


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_makers_pickle_whatever_they_are(pickler: Any, closing: Callable[[Any], Any]) -> None:
    length = 3
    made = pickler.loads(pickler.dumps(from_torchrl(lambda **kwargs: Squares(length, **kwargs))))
    assert isinstance(made, TorchRLEnvMaker)
    env = closing(made(dtype=torch.float64))
    assert env.length == 3
    assert env.reset()["square"].dtype == torch.float64


@pytest.mark.parametrize("creator", [EnvCreator, torchrl.envs.EnvCreator], ids=["gymbridge", "torchrl"])
def test_makers_in_creators(creator: Any, closing: Callable[[Any], Any]) -> None:
    made = creator(from_torchrl(counted)) if creator is EnvCreator else from_torchrl(creator(counted))
    env = closing(SerialEnv(2, made))
    assert env.rollout(3).batch_size == (2, 3)
    if creator is EnvCreator:
        assert made.meta_data.specs["output_spec", "full_observation_spec", "step_count"].dtype == torch.int64


def test_kwargs_reach_the_maker(closing: Callable[[Any], Any]) -> None:
    env = closing(SerialEnv(2, from_torchrl(GymEnv), create_env_kwargs={"env_name": "Pendulum-v1"}))
    assert env.reset()["observation"].shape == (2, 3)


def test_an_env_that_exists_runs_in_a_worker(closing: Callable[[Any], Any]) -> None:
    """It is pickled."""
    env = closing(ParallelEnv(2, [from_torchrl(counted(3)), from_torchrl(counted(4))]))
    assert env.length == [3, 4]
    assert env.rollout(2).batch_size == (2, 2)


def test_a_pool_hears_each_env_for_itself(closing: Callable[[Any], Any]) -> None:
    """Sent one by one, in another order than they are heard, each gives what it gives alone."""
    env = closing(AsyncEnvPool([from_torchrl(counted)] * NUM_ENVS))
    alone = [closing(counted()) for _ in range(NUM_ENVS)]
    for row, own in enumerate(alone):
        own.set_seed(SEED + row)
    env.seed_rows([SEED + row for row in range(NUM_ENVS)])
    roots = [own.reset() for own in alone]
    first = env.reset()
    for row, root in enumerate(roots):
        assert_equal_steps(first[row], root, batched=False)
    ours = [*first.unbind(0)]
    ended = 0
    for step in range(NUM_STEPS):
        for row in range(NUM_ENVS):
            ours[row]["action"] = roots[row]["action"] = torch.tensor((step + row) % 3)
            env.async_step_and_maybe_reset_send(ours[row], env_index=row)
        for row in reversed(range(NUM_ENVS)):
            td, ours[row] = env.async_step_and_maybe_reset_recv(env_index=row)
            expected, roots[row] = alone[row].step_and_maybe_reset(roots[row])
            ended += bool(expected["next", "done"])
            assert_equal_steps(td.exclude("env_index"), expected, batched=False)
    assert ended >= NUM_ENVS


def test_the_gymnasium_face_runs_over_it(closing: Callable[[Any], Any]) -> None:
    vector = TensorDictVectorEnv(closing(SerialEnv(2, from_torchrl(Squares))))
    observations, _ = vector.reset(seed=SEED)
    assert observations["square"].shape == (2, 2)
    assert vector.step(vector.action_space.sample())[1].tolist() != [0.0, 0.0]


def test_there_and_back_again(closing: Callable[[Any], Any]) -> None:
    """TorchRL envs in an engine that is itself a TorchRL env."""
    theirs = closing(torchrl.envs.SerialEnv(NUM_ENVS, counted))
    ours = closing(face.to_torchrl(SerialEnv(NUM_ENVS, face.from_torchrl(counted))))
    actions = drawn(theirs.full_action_spec)
    assert ours.set_seed(SEED) == theirs.set_seed(SEED)
    assert_equal_rollouts(seeded_rollout(ours, actions), seeded_rollout(theirs, actions))


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("given", ["CartPole-v1", 3, None], ids=str)
def test_what_is_no_env_and_no_maker_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a torchrl\.envs\.EnvBase or a callable"):
        from_torchrl(given)


def test_a_maker_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"of type .*, expected a torchrl\.envs\.EnvBase"):
        SerialEnv(1, from_torchrl(lambda: gym.make("CartPole-v1"))).reset()


def test_one_env_in_two_places_is_refused() -> None:
    """Alone, and inside of transforms."""
    env = Squares()
    with pytest.raises(ValueError, match="one and the same env"):
        SerialEnv(2, [from_torchrl(env), from_torchrl(TransformedEnv(env, StepCounter()))]).reset()


def test_an_env_that_resets_itself_is_refused() -> None:
    env = Squares()
    env._torchrl_native_autoreset = True
    with pytest.raises(ValueError, match=r"Squares resets itself in its steps"):
        from_torchrl(TransformedEnv(env, StepCounter()))


def test_a_transform_that_torchrl_refuses_in_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="NextObservationDelta"):
        from_torchrl(TransformedEnv(Squares(), NextObservationDelta()))


def test_a_torchrl_batch_of_unlike_envs_is_refused() -> None:
    makers = [lambda n=n: TransformedEnv(Squares(), CatFrames(n, -1, in_keys=["square"])) for n in (2, 3)]
    batch = torchrl.envs.SerialEnv(2, makers)
    with pytest.raises(ValueError, match="batch of unlike envs"):
        from_torchrl(batch)


class Lying(Squares):
    """Its reward has another dtype than its spec says."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        made = super()._step(tensordict)
        made["reward"] = made["reward"].double()
        return made


def test_an_output_unlike_its_spec_is_named(closing: Callable[[Any], Any]) -> None:
    """TorchRL's batches cast it into their buffers."""
    env = closing(SerialEnv(2, from_torchrl(Lying)))
    with pytest.raises(EnvOutputError, match=r"TorchRLEnv\._step: reward: got dtype torch\.float64"):
        env.rand_step(env.reset())


class Failing(Squares):
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        raise ZeroDivisionError("nothing left")


def test_what_an_env_raises_comes_through(closing: Callable[[Any], Any]) -> None:
    env = closing(SerialEnv(2, [from_torchrl(Squares), from_torchrl(Failing)]))
    with pytest.raises(ZeroDivisionError, match="nothing left") as caught:
        env.rand_step(env.reset())
    assert caught.value.env_index == 1  # type: ignore[attr-defined]
    partial_td = env.last_partial()
    assert partial_td is not None
    assert partial_td["_failed"].tolist() == [False, True]


def test_a_partial_step_of_a_batch_that_is_not_known_to_honour_it_is_refused(closing: Callable[[Any], Any]) -> None:
    batch = partial(Squares, batch_size=(2,))
    env = closing(from_torchrl(batch()))
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([True, False])
    with pytest.raises(ValueError, match="partial_step=False"):
        env.step(td.copy())
    assert closing(from_torchrl(batch(), partial_step=True)).partial_step
    assert closing(from_torchrl(torchrl.envs.SerialEnv(2, Squares))).partial_step
    assert env.partial_reset


def test_agents_in_two_kinds_of_groups_have_no_members_dim_in_one() -> None:
    """What cannot be taken apart is named."""

    class Odd(Agents):
        def __init__(self) -> None:
            super().__init__()
            members = [Unbounded((size,)) for size in (1, 2, 3)]
            from torchrl.data import Composite, StackedComposite

            eyes = StackedComposite(*[Composite(eye=own) for own in members], dim=0)
            self.observation_spec = Composite(walkers=eyes)
            self.full_reward_spec = Composite(walkers=Composite(reward=Unbounded((3, 1))))

    with pytest.raises(ValueError, match=r"reward_spec: got a group \('walkers',\) of shape \[\]"):
        from_torchrl(Odd())


def test_is_a_gymbridge_env(closing: Callable[[Any], Any]) -> None:
    assert isinstance(closing(from_torchrl(Squares())), EnvBase)


def test_docstrings() -> None:
    results = doctest.testmod(gymbridge.interop.torchrl_env)
    assert results.attempted > 5
    assert results.failed == 0


# ---------------------------------------------------------------- the contract check


@pytest.mark.parametrize("name", MAKERS)
def test_torchrl_envs_pass_the_contract_check(name: str) -> None:
    report = check(MAKERS[name], num_steps=20, workers=name in ("squares", "groups", "cart-pole"))
    # TorchRL's stateless pendulum hands on the memory of the parameters that it is given
    expected = {"output-aliases-input"} if name == "stateless-pendulum" else set()
    assert {fault.code for fault in report.errors} == expected, "\n".join(map(str, report.errors))


def test_faults_of_a_torchrl_env_are_told() -> None:
    class Far(Squares):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            made = super()._step(tensordict)
            return made.set("reward", made["reward"].double())

    report = check(Far, num_steps=20)
    assert [(fault.code, fault.key) for fault in report.errors] == [("entry-dtype", "reward")]
