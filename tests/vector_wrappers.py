"""Every class of ``gymnasium.wrappers.vector``: an env and arguments with which it does something. No torch here."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same
from generated_envs import Plan, PlannedEnv
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector
from packaging.version import Version

__all__ = [
    "CASES",
    "KeepsOptions",
    "PlannedRenderEnv",
    "WrapperCase",
    "assert_same_trace",
    "require_packages",
    "stand_ins",
    "trace",
    "video",
]

NOT_NEXT_STEP = (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
INFOS = ({"n": 1, "arm": {"angle": 0.5}}, {"n": 2}, {"word": "up", "arm": {"angle": 1.5}})
ENDS = ((True, False), (False, True))
PLAN = {"lengths": (4, 2, 5), "ends": ENDS}
VALUES = spaces.Box(-2, 2, (3,), np.float32)
LIMITED = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32))
IMAGE = spaces.Box(0, 255, (6, 8, 3), np.uint8)
NESTED = spaces.Dict(pose=spaces.Dict(x=VALUES, on=spaces.MultiBinary(2)), gear=spaces.Discrete(4))


class PlannedRenderEnv(PlannedEnv):
    """A planned env that renders an image of its own number and step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1_000_000}  # noqa: RUF012 - as gymnasium declares it

    def render(self) -> Any:
        image = np.full((12, 16, 3), 40 * self.index, np.uint8)
        image[:, : self._step] = 255
        return image


@dataclass(frozen=True)
class WrapperCase:
    """A wrapper over envs that it suits.

    Attributes:
        name: of the class in ``gymnasium.wrappers.vector``.
        plan: of the envs.
        wrap: puts a vector env into the wrapper.
        kept: attributes in which the wrapper keeps what it has seen.
        needs: packages without which the wrapper cannot be made, other than those that have a stand-in.
        refusing: modes in which gymnasium's own wrapper raises, over any vector env.
        label: tells cases of one class apart.
    """

    name: str
    plan: Plan
    wrap: Callable[[Any], Any]
    kept: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    refusing: tuple[AutoresetMode, ...] = ()
    label: str = ""

    def __str__(self) -> str:
        return f"{self.name}-{self.label}" if self.label else self.name

    @property
    def env_class(self) -> type[PlannedEnv]:
        return PlannedRenderEnv if self.renders else PlannedEnv

    @property
    def renders(self) -> bool:
        return self.name in ("RecordVideo", "HumanRendering")

    def makers(self, num_envs: int) -> list[Callable[[], PlannedEnv]]:
        cls, plan = self.env_class, self.plan
        kwargs = {"render_mode": "rgb_array"} if self.renders else {}
        return [lambda index=index: cls(plan, index, **kwargs) for index in range(num_envs)]  # type: ignore[misc]


def a_case(
    name: str,
    *args: Any,
    observations: spaces.Space = VALUES,
    actions: spaces.Space = LIMITED,
    label: str = "",
    more: dict[str, Any] | None = None,
    **kwargs: Any,
) -> WrapperCase:
    """A case of the class of that name, made with ``args`` and ``kwargs``."""
    plan = Plan(observations, actions, step_infos=INFOS, reset_infos=({"begun": 1},), **PLAN)  # type: ignore[arg-type]

    def wrap(envs: Any) -> Any:
        return getattr(vector, name)(envs, *args, **kwargs)

    # gymnasium's observation wrappers do not transform the final observations
    refusing = (AutoresetMode.SAME_STEP,) if name.endswith("Observation") else ()
    return WrapperCase(name, plan, wrap, label=label, **{"refusing": refusing, **(more or {})})  # type: ignore[arg-type]


def converting(name: str, *modules: str, needs: tuple[str, ...] = (), label: str = "") -> WrapperCase:
    """A case of a wrapper that converts arrays, made with modules of these names; infos are numbers alone."""
    infos = ({"n": 1, "arm": {"angle": 0.5}}, {"n": 2})
    plan = Plan(NESTED, LIMITED, step_infos=infos, **PLAN)  # type: ignore[arg-type]

    def wrap(envs: Any) -> Any:
        return getattr(vector, name)(envs, *(importlib.import_module(module) for module in modules))

    # final observations stand in an array of objects, which no other kind of array holds; a mask becomes jax's
    refusing = NOT_NEXT_STEP if name.startswith("Jax") else (AutoresetMode.SAME_STEP,)
    return WrapperCase(name, plan, wrap, needs=("array_api_compat", *needs), refusing=refusing, label=label)


def all_together(envs: Any) -> Any:
    """What a training loop puts around its envs."""
    envs = vector.RecordEpisodeStatistics(envs)
    envs = vector.ClipAction(vector.FlattenObservation(envs))
    envs = vector.NormalizeReward(vector.RescaleObservation(envs, -1, 1), gamma=0.9)
    envs = vector.TransformObservation(vector.ClipReward(envs, -1, 1), np.tanh)
    return vector.DictInfoToList(envs)


def recorded(envs: Any, **kwargs: Any) -> Any:
    # a folder of its own; no collection of garbage after each episode, which takes long
    return vector.RecordVideo(envs, Path(tempfile.mkdtemp(dir="."), "videos"), gc_trigger=None, **kwargs)


def video(envs: Any) -> Any:
    return recorded(envs, video_aspect_ratio=(3, 1), episode_trigger=lambda episode: True)


def start_of_video(envs: Any) -> Any:
    return recorded(envs, record_first_only=True, video_length=5, step_trigger=lambda step: step % 6 == 2)


SHOWN = a_case("RecordVideo").plan
STATISTICS = ("episode_count", "return_queue", "length_queue", "time_queue", "episode_returns", "episode_lengths")
PAIR = spaces.Tuple((spaces.Discrete(3), LIMITED))

CASES = (
    a_case(
        "VectorizeTransformObservation",
        wrapper=wrappers.TransformObservation,
        func=lambda value: np.stack([value, 2 * value]),
        observation_space=spaces.Box(-4, 4, (2, 3), np.float32),
    ),
    a_case(
        "VectorizeTransformAction",
        wrapper=wrappers.TransformAction,
        func=lambda value: value / 2,
        action_space=spaces.Box(-2, 2, (2,), np.float32),
    ),
    a_case("VectorizeTransformReward", wrapper=wrappers.TransformReward, func=lambda reward: reward**2),
    a_case("DictInfoToList"),
    a_case("TransformObservation", lambda value: value - 1, single_observation_space=spaces.Box(-3, 1, (3,))),
    a_case("FilterObservation", ["gear"], observations=NESTED),
    a_case("FilterObservation", [1], observations=PAIR, label="tuple"),
    a_case("FlattenObservation", observations=NESTED),
    a_case("FlattenObservation", observations=PAIR, label="tuple"),
    a_case("GrayscaleObservation", observations=IMAGE),
    a_case("GrayscaleObservation", observations=IMAGE, keep_dim=True, label="with its dim"),
    a_case("ResizeObservation", (3, 4), observations=IMAGE),
    a_case("ReshapeObservation", (3, 1)),
    a_case("RescaleObservation", -1, 1),
    a_case("DtypeObservation", np.float64),
    a_case("NormalizeObservation", more={"kept": ("obs_rms",), "refusing": NOT_NEXT_STEP}),
    a_case("TransformAction", lambda value: value / 2, single_action_space=spaces.Box(-2, 2, (2,), np.float32)),
    a_case("ClipAction"),
    a_case("RescaleAction", np.float32(-0.5), np.float32(0.5)),
    a_case("TransformReward", lambda rewards: rewards + 1),
    a_case("ClipReward", -1, 1),
    a_case("NormalizeReward", gamma=0.9, more={"kept": ("return_rms", "accumulated_reward")}),
    a_case("RecordEpisodeStatistics", more={"kept": STATISTICS}),
    WrapperCase("RecordVideo", SHOWN, video),
    WrapperCase("RecordVideo", SHOWN, start_of_video, label="of the first"),
    WrapperCase("HumanRendering", SHOWN, lambda envs: vector.HumanRendering(envs, (64, 48)), needs=("pygame",)),
    converting("ArrayConversion", "numpy", "numpy", label="numpy"),
    converting("ArrayConversion", "numpy", "torch", needs=("torch",), label="torch"),
    converting("ArrayConversion", "numpy", "jax.numpy", needs=("jax",), label="jax"),
    converting("JaxToNumpy", needs=("jax",)),
    converting("JaxToTorch", needs=("jax", "torch")),
    converting("NumpyToTorch", needs=("torch",)),
    WrapperCase(
        "RecordEpisodeStatistics",
        a_case("ClipAction").plan,
        all_together,
        refusing=(AutoresetMode.SAME_STEP,),
        label="and others",
    ),
)


class KeepsOptions(gym.vector.VectorWrapper):
    """Hides from a wrapper that gymnasium's own vector envs take the mask out of the dict of options."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=copy.copy(options))


def trace(case: WrapperCase, envs: Any, num_steps: int = 24) -> list[tuple[str, Any]]:
    """All that a wrapped vector env gives, for the same seeds and actions each time; it is closed then.

    Ends with ``("raised", type)`` where the wrapper raises, and with ``("ends", n)`` where it does not.
    """
    mode = envs.metadata["autoreset_mode"]
    inner, seen = envs, []
    try:
        envs = case.wrap(envs)
        names = ("observation_space", "single_observation_space", "action_space", "single_action_space")
        seen += [(name, getattr(envs, name)) for name in names]
        seen += [("metadata", copy.deepcopy(envs.metadata)), ("render_mode", envs.render_mode)]
        seen.append(("reset", _plain(envs.reset(seed=9))))
        envs.action_space.seed(2)
        random = np.random.default_rng(4)
        ended, num_ends = np.zeros(envs.num_envs, np.bool_), 0
        for step in range(num_steps):
            if step == 13:
                seen.append(("reset", _plain(envs.reset(seed=[5, None, 6][: envs.num_envs], options={"level": 1}))))
                ended[:] = False
            elif mode is AutoresetMode.DISABLED and ended.any():
                mask = ended | (random.random(len(ended)) < 0.2)
                seen.append(("masked reset", _plain(envs.reset(options={"reset_mask": mask}))))
            actions = envs.action_space.sample()
            result = envs.step(actions)
            seen.append(("step", _plain(result)))
            ended = np.asarray(result[2]) | np.asarray(result[3])
            num_ends += int(ended.sum())
            if case.name == "HumanRendering":
                seen.append(("window", _window()))
            elif envs.render_mode is not None:
                seen.append(("render", _plain(envs.render())))
        seen += [(name, _plain(getattr(envs, name))) for name in case.kept]
        seen.append(("ends", num_ends))
    except Exception as error:
        seen.append(("raised", type(error)))
        inner.close()
        return seen
    envs.close()
    return seen


def require_packages(case: WrapperCase) -> None:
    """Skips where the installed gymnasium lacks the wrapper, or a package that it needs is not installed."""
    if case.name not in vector.__all__:
        pytest.skip(f"gymnasium {gym.__version__} has no {case.name}")
    for package in case.needs:
        pytest.importorskip(package)


def assert_same_trace(
    case: WrapperCase, mode: AutoresetMode, ours: list[tuple[str, Any]], theirs: list[tuple[str, Any]]
) -> None:
    """Fails unless two traces agree and went on for several episodes, or ended in an error that is expected."""
    assert [name for name, _ in ours] == [name for name, _ in theirs], (ours[-1], theirs[-1])
    how, value = theirs[-1]
    older = Version(gym.__version__) < Version("1.4")  # refuse in other cases, and with other errors
    for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if not (older and our[0] == "raised"):
            assert_same(our, their, f"{our[0]} ({index})")
    if how == "ends":
        assert value > 8
    assert older or (how == "raised") == (mode in case.refusing), value


def _plain(value: Any) -> Any:
    """A copy in which what is neither a container nor numpy's stands by the name of its type and an array."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(part) for part in value)
    if hasattr(value, "mean") and hasattr(value, "var") and hasattr(value, "count"):  # running statistics
        return {name: _plain(getattr(value, name)) for name in ("mean", "var", "count")}
    if isinstance(value, deque):
        return list(value)
    if hasattr(value, "__array__") and not isinstance(value, (np.ndarray, np.generic)):
        return str(type(value)), np.asarray(value).copy()
    return copy.deepcopy(value)


def _window() -> Any:
    pygame = importlib.import_module("pygame")
    return pygame.surfarray.array3d(pygame.display.get_surface())


def _resized(image: Any, size: tuple[int, int], **kwargs: Any) -> Any:
    rows = np.arange(size[1]) * image.shape[0] // size[1]
    columns = np.arange(size[0]) * image.shape[1] // size[0]
    return image[rows][:, columns]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Lets wrappers run as they do on a user's machine: in a folder of their own, with no screen and no clock.

    Where cv2 is not installed, images are resized by a plain function. Videos are not encoded.

    Returns:
        The frames of each video, by its file's name.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr("gymnasium.wrappers.vector.common.time", SimpleNamespace(perf_counter=lambda: 3.0))
    if importlib.util.find_spec("cv2") is None:
        cv2 = ModuleType("cv2")
        vars(cv2).update(resize=_resized, INTER_AREA=3)
        monkeypatch.setitem(sys.modules, "cv2", cv2)
    videos: dict[str, Any] = {}

    class ImageSequenceClip:
        def __init__(self, frames: list[Any], fps: int):
            self.frames = fps, [np.array(frame) for frame in frames]

        def write_videofile(self, path: str, **kwargs: Any) -> None:
            videos[Path(path).name] = self.frames

    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        module = ModuleType(name)
        vars(module).update(ImageSequenceClip=ImageSequenceClip, __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
    return videos
