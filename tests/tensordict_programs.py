"""Random programs of resets and steps over TensorDict envs, each call compared with the oracle's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from by_hand import assert_equal, is_lazy
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict, TensorDictBase
from tensordict_engines import TensorDictEngine
from tensordict_oracle import OneByOne, done_groups, keys_of
from tensordict_zoo import WORDS

from gymbridge.envs import EnvBase
from gymbridge.specs import NonTensor

__all__ = ["random_inputs", "run_a_program"]

CALLS = ("reset", "step", "step_and_maybe_reset")


def random_leaf(spec: Any) -> Any:
    """A value of a spec from torch's generator; a word where it is no tensor."""
    if isinstance(spec, NonTensor):
        return NonTensorData(WORDS[int(torch.randint(len(WORDS), ()))], batch_size=spec.shape)
    return spec.rand()


def random_inputs(env: EnvBase, root: TensorDictBase | None = None) -> TensorDictBase:
    """One env's actions and states: the states of a root where it has them."""
    row = TensorDict({}, env.batch_size, device=env.device)
    for key in keys_of(env.full_state_spec):
        state = None if root is None else root.get(key, None)
        row.set(key, env.full_state_spec[key].rand() if state is None else state.clone())
    for key in keys_of(env.full_action_spec):
        row.set(key, random_leaf(env.full_action_spec[key]))
    return row


class Choices(dict[str, bool]):
    """What is drawn once and holds for all envs."""

    def __init__(self, data: st.DataObject):
        self.data = data

    def __missing__(self, label: str) -> bool:
        self[label] = drawn = bool(self.data.draw(st.booleans(), label=label))
        return drawn


def given_row(choices: Choices, env: EnvBase, root: TensorDictBase, kept: str) -> TensorDictBase:
    """One env's part of what a caller hands in: its inputs, and observations and flags, all, some, none or made up."""
    row = random_inputs(env, root)
    row["of", "the caller"] = torch.rand((*env.batch_size, 2))
    for spec in (env.full_observation_spec, env.full_done_spec):
        for key in keys_of(spec):
            if kept == "none" or (kept == "some" and not choices[f"{key} given"]):
                continue
            fixed = -1 not in spec[key].shape
            row.set(key, random_leaf(spec[key]) if kept == "made up" and fixed else root.get(key).clone())
    for key in keys_of(env.full_state_spec):
        if choices[f"{key} under next"]:
            row.set(("next", *key), env.full_state_spec[key].rand())
    return row


def draw_masks(
    data: st.DataObject, oracle: OneByOne, name: str, may: Sequence[torch.Tensor], partial: Sequence[bool]
) -> list[dict[tuple[str, ...], torch.Tensor]]:
    """Each env's masks in one of their legal forms, which pick no rows but those that may be."""
    env = oracle.envs[0]
    groups = done_groups(env)
    grouped = groups != [()]
    everything = all(bool(rows.all()) for rows in may)
    forms = ["flat", *["as done"] * (() in groups), *["every group's"] * grouped]
    if not oracle.batched and env.batch_size and not partial[0]:
        forms = []  # a mask is refused, even one of none
    form = data.draw(st.sampled_from([*["none"] * everything, *forms]), label=f"{name} in the form")
    if form == "none":
        return [{} for _ in oracle.envs]
    drawn: list[dict[tuple[str, ...], torch.Tensor]] = []
    for index, (one, rows) in enumerate(zip(oracle.envs, may, strict=True)):
        if partial[index]:
            bits = data.draw(
                st.lists(st.booleans(), min_size=rows.numel(), max_size=rows.numel()), label=f"env {index}"
            )
            picked = torch.tensor(bits, dtype=torch.bool).reshape(rows.shape) & rows
        else:
            picked = torch.full_like(rows, data.draw(st.booleans(), label=f"env {index}") and bool(rows.all()))
        if form == "flat":
            drawn.append({(name,): picked})
        elif form == "as done":
            drawn.append({(name,): picked.unsqueeze(-1)})
        else:
            drawn.append(draw_groups_masks(data, one, name, picked))
    return drawn


def draw_groups_masks(
    data: st.DataObject, env: EnvBase, name: str, picked: torch.Tensor
) -> dict[tuple[str, ...], torch.Tensor]:
    """The masks of every group; where there are no flags at the root, a reset may be one of some in a group."""
    shapes = {group: env.full_done_spec[(*group, "done")].shape for group in done_groups(env)}
    masks = {(*group, name): picked.expand(shape).clone() for group, shape in shapes.items()}
    if () not in shapes and name == "_reset" and data.draw(st.booleans(), label="parts of groups"):
        for mask in masks.values():
            bits = data.draw(st.lists(st.booleans(), min_size=mask.numel(), max_size=mask.numel()))
            mask &= torch.tensor(bits).reshape(mask.shape)
    return masks


def run_a_program(
    engine: TensorDictEngine, maker: Callable[[int], EnvBase], data: st.DataObject, rounds: int = 10
) -> None:
    """Draws resets, steps and both together, each of any part of the batch, and compares after each."""
    first = data.draw(st.integers(0, 2), label="index of the first env")
    env = engine.make(maker, first)
    same = partial(assert_same, lazy=engine.lazy or (env.has_dynamic_specs and engine.batched))
    oracle = OneByOne(engine.one_by_one(maker, first), engine.batched)
    assert env.set_seed(7) == oracle.set_seed(7)
    torch.manual_seed(data.draw(st.integers(0, 1000), label="seed of the actions"))
    partial_reset = [one.partial_reset for one in oracle.envs]
    partial_step = [one.partial_step for one in oracle.envs]
    with torch.no_grad():
        got, root = env.reset(), oracle.reset()
        same(got, root, "first reset")
        for number in range(rounds):
            running = oracle.running()
            may_step = all(bool(rows.all()) for rows in running) or engine.batched or all(partial_step)
            do = data.draw(st.sampled_from(CALLS if may_step else CALLS[:1]), label=f"round {number}")
            kept = data.draw(st.sampled_from(["all", "none", "some", "made up"]), label="keys given")
            if do == "reset" and data.draw(st.booleans(), label="reset of all, given nothing"):
                root = oracle.reset()
                same(env.reset(), root, f"round {number}: reset of all")
                continue
            choices = Choices(data)
            rows = [given_row(choices, *pair, kept) for pair in zip(oracle.envs, oracle.rows_of(root), strict=True)]
            resets = do == "reset"
            may = [torch.ones_like(picked) for picked in running] if resets else running
            masks = draw_masks(
                data, oracle, "_reset" if resets else "_step", may, partial_reset if resets else partial_step
            )
            for row, own in zip(rows, masks, strict=True):
                for key, mask in own.items():
                    row.set(key, mask)
            td = oracle.joined(rows)
            before = td.clone()
            if do == "reset":
                root = oracle.reset(before)
                got = env.reset(td)
                assert_equal(td, before, f"round {number}: what reset was given")
                same(got, root, f"round {number}: reset", td)
                continue
            if do == "step":
                following = oracle.step(before)
                got = env.step(td)
            else:
                following, root = oracle.step_and_maybe_reset(before)
                got, got_root = env.step_and_maybe_reset(td)
                same(got_root, root, f"round {number}: td_", td)
            assert got is td
            same(td["next"], following, f"round {number}: next of {do}", td)
            stays = before.exclude("next", *(key for own in masks for key in own))
            assert_equal(td.exclude("next"), stays, f"round {number}: root of {do}")
            if do == "step":
                root = oracle.joined([latest.clone() for latest in oracle.latest])
    env.close()


def assert_same(
    got: TensorDictBase,
    expected: TensorDictBase,
    where: str,
    given: TensorDictBase | None = None,
    *,
    lazy: bool = False,
) -> None:
    """Equal, and dense where specs tell that it can be, unless what was given is a lazy stack itself."""
    assert_equal(got, expected, where)
    if lazy:
        assert is_lazy(got), f"{where}: dense, where shapes may differ another time"
    elif not is_lazy(expected) and not is_lazy(given):
        assert not is_lazy(got), f"{where}: a lazy stack of what can be dense"
