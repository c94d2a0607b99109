"""A film of a vector env: all its envs in one picture, as a GIF or through gymnasium's own RecordVideo as an mp4.

python examples/record_video.py               # video/cartpoles.gif
python examples/record_video.py --format mp4  # video/cartpoles-episode-0.mp4

The envs run in worker processes, which send the pictures that `render()` hands out. In the film the upper carts move at
random and the lower ones balance their poles. Prints how many pictures there are, and how many poles fell in each row.
Pictures of CartPole need pygame: pip install "gymnasium[classic-control]". A GIF needs Pillow, which matplotlib brings:
pip install "gymbridge[examples]". An mp4 needs moviepy: pip install moviepy.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from gymbridge.vector import make_vec

COLUMNS = 3
NUM_ENVS = 2 * COLUMNS
PICTURES_A_SECOND = 25

Array = npt.NDArray[Any]
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


class RecordGif(gym.vector.VectorWrapper):
    """Keeps a picture of each reset and step, a tile for each env, and writes them when it is closed."""

    def __init__(self, env: VectorEnv, path: Path):
        super().__init__(env)
        self.path = path
        self.pictures: list[Array] = []

    def reset(self, **kwargs: Any) -> Any:
        first = super().reset(**kwargs)
        self.pictures.append(self.tiles())
        return first

    def step(self, actions: Any) -> Any:
        stepped = super().step(actions)
        self.pictures.append(self.tiles())
        return stepped

    def tiles(self) -> Array:
        """The envs' pictures, half as large, in rows of COLUMNS."""
        pictures: Any = self.env.render()
        rows = [np.concatenate(pictures[i : i + COLUMNS], axis=1) for i in range(0, NUM_ENVS, COLUMNS)]
        return np.concatenate(rows)[::2, ::2]

    def close(self, **kwargs: Any) -> None:
        super().close(**kwargs)
        if not self.pictures:
            return
        from PIL import Image

        first, *others = (Image.fromarray(picture) for picture in self.pictures)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        milliseconds = 1000 // PICTURES_A_SECOND
        first.save(self.path, save_all=True, append_images=others, duration=milliseconds, loop=0)


def act(observations: Array, generator: np.random.Generator) -> Array:
    """At random in the first row; in the second, to the side to which the pole falls."""
    position, velocity, angle, turning = observations.T
    actions: Array = np.where(0.05 * position + 0.1 * velocity + angle + 0.3 * turning > 0, 1, 0)
    actions[:COLUMNS] = generator.integers(2, size=COLUMNS)
    return actions


def main(argv: Sequence[str] | None = None) -> tuple[Path, list[int]]:
    """Films; the file, and how many poles fell in each row."""
    parser = argparse.ArgumentParser(description="A film of a vector env, as a GIF or as an mp4.")
    parser.add_argument("--format", choices=["gif", "mp4"], default="gif")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("video"))
    args = parser.parse_args(argv)
    if importlib.util.find_spec("pygame") is None:
        parser.error("pictures of CartPole need pygame: pip install 'gymnasium[classic-control]'")
    if args.format == "gif" and importlib.util.find_spec("PIL") is None:
        parser.error("a GIF needs Pillow: pip install 'gymbridge[examples]'")
    if args.format == "mp4" and importlib.util.find_spec("moviepy") is None:
        parser.error("an mp4 needs moviepy: pip install moviepy")

    envs: VectorEnv = make_vec("CartPole-v1", NUM_ENVS, render_mode="rgb_array")
    if args.format == "gif":
        path = args.folder / "cartpoles.gif"
        envs = RecordGif(envs, path)
    else:
        path = args.folder / "cartpoles-episode-0.mp4"  # as the wrapper calls its first one
        envs = gym.wrappers.vector.RecordVideo(
            envs,
            video_folder=str(args.folder),
            video_aspect_ratio=(16, 9),
            episode_trigger=lambda episode: episode == 0,
            video_length=args.steps,  # so many, and that of the reset
            name_prefix="cartpoles",
            fps=PICTURES_A_SECOND,
        )

    generator = np.random.default_rng(args.seed)
    fallen = np.zeros(NUM_ENVS, int)
    with closing(envs):  # which writes the file
        observations, _ = envs.reset(seed=args.seed)
        for _ in range(args.steps):
            observations, _, terminations, _, _ = envs.step(act(observations, generator))
            fallen += terminations
    rows = [int(row.sum()) for row in fallen.reshape(-1, COLUMNS)]
    print(f"{path}: {args.steps + 1} pictures; poles that fell in the upper row {rows[0]}, in the lower {rows[1]}")
    return path, rows


if __name__ == "__main__":
    main()
