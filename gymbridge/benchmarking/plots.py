"""Figures over the number of envs, as a picture; needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["picture_formats", "plot_costs"]

_MARKERS = "osD^vPX<>*"
"""With the colours, so that lines are told apart without them."""

_DARK = """
    @media (prefers-color-scheme: dark) {
      text { fill: #e6e9ec }
      [style*="fill: #ffffff"] { fill: #1b1e23 !important }
      [style*="stroke: #000000"] { stroke: #a5adb6 !important }
    }
  """
"""Style of an SVG where the page is dark; the colours of the lines can be seen on either."""


def picture_formats() -> list[str]:
    """The suffixes of files that a picture can be written to.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    return sorted(FigureCanvasBase.get_supported_filetypes())


def plot_costs(
    file: Path, title: str, num_envs: Sequence[int], costs: Mapping[str, Sequence[float | None]], emphasised: str
) -> None:
    """Draws what a step of all envs costs, a line a candidate, or a point where there is one number of envs.

    Args:
        file: where to write it; its suffix is the format.
        title: over the picture.
        num_envs: the numbers of envs.
        costs: candidate -> microseconds for each number of envs, None where there is no figure.
        emphasised: what the names of the candidates begin with that are drawn thicker.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure  # not pyplot, which looks for a display

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, parse_math=False)  # which has a name of a user's
    if len(num_envs) == 1:
        _draw_points(axes, num_envs[0], {name: cost for name, (cost,) in costs.items()}, emphasised)
    else:
        _draw_lines(axes, num_envs, costs, emphasised)
    file.write_bytes(_drawn(figure, file.suffix.removeprefix(".").lower()))


def _draw_points(axes: Axes, num_envs: int, costs: Mapping[str, float | None], emphasised: str) -> None:
    for name, cost in costs.items():
        if cost is not None:
            axes.plot([cost], [name], marker="o", color="C0" if name.startswith(emphasised) else "0.5")
            label = f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
            axes.annotate(label, (cost, name), xytext=(8, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.grid(visible=True, axis="y", alpha=0.25)
    axes.set_xlabel(f"microseconds for a step of {num_envs} envs")


def _draw_lines(
    axes: Axes, num_envs: Sequence[int], costs: Mapping[str, Sequence[float | None]], emphasised: str
) -> None:
    from matplotlib import colormaps

    looks = cycle((colour, mark) for mark, colour in zip(cycle(_MARKERS), colormaps["tab10"](range(10))))
    for (name, own), (colour, mark) in zip(costs.items(), looks, strict=False):
        points = [(n, cost) for n, cost in zip(num_envs, own, strict=True) if cost is not None]
        if points:
            is_ours = name.startswith(emphasised)
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=mark,
                linewidth=2.2 if is_ours else 1.2,
                linestyle="-" if is_ours else "--",
                label=name,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(num_envs, [str(n) for n in num_envs])
    axes.set_xlabel("environments")
    axes.set_ylabel("microseconds for a step of all of them")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _drawn(figure: Figure, picture_format: str) -> bytes:
    """The picture, before there is a file: nothing is left of what cannot be drawn.

    An SVG has its text as text, is for light pages and dark ones, and the same figures give the same bytes.
    """
    from matplotlib import rc_context

    drawn = BytesIO()
    if picture_format != "svg":
        figure.savefig(drawn, format=picture_format)
        return drawn.getvalue()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "gymbridge"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    before, style, after = drawn.getvalue().partition(b'<style type="text/css">')
    return before + style + _DARK.encode() + after
