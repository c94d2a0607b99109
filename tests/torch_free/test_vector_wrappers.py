"""gymnasium's vector wrappers give over our vector envs what they give over gymnasium's own, to the bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import vector_wrappers
from agreement import assert_same
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector
from vector_classes import BOTH, travels
from vector_wrappers import (
    CASES,
    KeepsOptions,
    WrapperCase,
    assert_same_trace,
    require_packages,
    stand_ins,
    trace,
    video,
)

__all__ = ["stand_ins"]

travels(sys.modules[__name__], vector_wrappers)

MODES = tuple(AutoresetMode)


def test_every_wrapper_has_a_case() -> None:
    """Also one that a newer gymnasium adds."""
    missing = {*vector.__all__} - {case.name for case in CASES}
    assert not missing


@pytest.mark.every(3, "cls", "mode", "copied", "case")
@BOTH
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("copied", [True, False], ids=["copy", "no copy"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrapper_gives_what_it_gives_over_gymnasiums_envs(
    cls: Any, case: WrapperCase, mode: AutoresetMode, copied: bool, stand_ins: dict[str, Any]
) -> None:
    require_packages(case)
    makers = case.makers(3)
    theirs = trace(case, KeepsOptions(gym.vector.SyncVectorEnv(makers, autoreset_mode=mode, copy=copied)))
    their_videos = dict(stand_ins)
    stand_ins.clear()
    assert_same_trace(case, mode, trace(case, cls(makers, autoreset_mode=mode, copy=copied)), theirs)
    assert_same(stand_ins, their_videos)
    assert bool(their_videos) == (case.name == "RecordVideo")


@BOTH
def test_a_masked_reset_leaves_the_statistics_of_the_other_envs(cls: Any) -> None:
    """Over gymnasium's own vector envs it clears them all: the mask is taken out of the options before they look."""
    case = next(case for case in CASES if str(case) == "RecordEpisodeStatistics")
    envs = case.wrap(cls(case.makers(3), autoreset_mode=AutoresetMode.DISABLED))
    envs.reset(seed=0)
    envs.step(envs.action_space.sample())
    before = envs.episode_returns.copy()
    assert before.all()
    envs.reset(options={"reset_mask": np.array([True, False, False])})
    assert envs.episode_lengths.tolist() == [0, 1, 1]
    assert envs.episode_returns.tolist() == [0, *before[1:]]
    envs.close()


@BOTH
def test_a_video_is_written(cls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moviepy")
    if "RecordVideo" not in vector.__all__:
        pytest.skip(f"gymnasium {gym.__version__} has no RecordVideo")
    monkeypatch.chdir(tmp_path)
    case = next(case for case in CASES if case.name == "RecordVideo")
    envs = video(cls(case.makers(3)))
    envs.reset(seed=0)
    for _ in range(8):
        envs.step(envs.action_space.sample())
    envs.close()
    files = sorted(Path(envs.video_folder).iterdir())
    assert [file.name for file in files] == [f"rl-video-episode-{episode}.mp4" for episode in range(3)]
    assert all(file.stat().st_size for file in files)
