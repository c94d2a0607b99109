"""Workers that run batches of envs and die while only a part of such a batch is stepped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from mortal_envs import GO, KILL, mortal

from gymbridge import ParallelEnv, SerialEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests the ends of workers as Linux has them")

MARK = ("info", "worker_restarted")


def batches(**options: Any) -> ParallelEnv:
    makers: list[Callable[[], Any]] = [partial(SerialEnv, 3, mortal(3))] * 2
    return ParallelEnv(2, makers, num_workers=2, on_worker_failure="restart", **options)


@pytest.mark.parametrize("options", [{}, {"use_buffers": False}, {"share_individual_td": True}])
def test_all_of_a_batch_comes_back_whose_worker_dies_in_a_partial_step(options: Any) -> None:
    """The envs that were left out have lost their episodes too: they are truncated and reset as the others."""
    env = batches(**options)
    td = env.reset()
    td["_step"] = torch.tensor([[True, False, True], [False, True, True]])
    td["action"] = torch.tensor([[GO, GO, GO], [GO, KILL, GO]])
    td, td_ = env.step_and_maybe_reset(td)
    assert td["next"][MARK].tolist() == [[False] * 3, [True] * 3]
    assert td["next", "truncated"].squeeze(-1).tolist() == [[False] * 3, [True] * 3]
    assert td_["observation"][..., 1].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert not td_["done"].any()
    td_["action"] = torch.full((2, 3), GO)
    td, _ = env.step_and_maybe_reset(td_)
    assert td["next", "observation"][..., 1].tolist() == [[2, 1, 2], [1, 1, 1]]
    assert not td["next"][MARK].any()
    env.close()
