"""What an engine asks of the thing that runs envs, wherever that is: in this process or in a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gymbridge.engine.block import Block
from gymbridge.engine.layout import Leaf

__all__ = ["NOTHING", "EnvDescription", "Host", "Report"]


class EnvDescription(Protocol):
    """What an env says of itself before any memory exists."""

    @property
    def input_leaves(self) -> tuple[Leaf, ...]:
        """Leaves of the block's ``input`` section."""

    @property
    def next_leaves(self) -> tuple[Leaf, ...]:
        """Leaves of the block's ``next`` section."""

    @property
    def root_leaves(self) -> tuple[Leaf, ...]:
        """Leaves of the block's ``root`` section."""


class Report:
    """What a round leaves beside the block.

    Attributes:
        step_infos: row -> info of its step.
        reset_infos: row -> info of its reset.
        errors: row -> the exception that it raised.
    """

    __slots__ = ("errors", "reset_infos", "step_infos")

    def __init__(self) -> None:
        self.step_infos: dict[int, dict[str, Any]] = {}
        self.reset_infos: dict[int, dict[str, Any]] = {}
        self.errors: dict[int, Exception] = {}


NOTHING = Report()
"""The report of a round that leaves nothing: most rounds. It is shared, and never written to."""


class Host(Protocol):
    """Runs the envs of a contiguous run of rows; the only thing that knows what kind of env they are.

    It is made with its envs, asked what they are (``descriptions``), given memory (``attach``), and run round by round.
    """

    def descriptions(self) -> list[Any]:
        """One ``EnvDescription`` a row."""

    def attach(self, block: Block) -> None:
        """Takes the memory that the rows' inputs and outputs lie in."""

    def run(
        self, ops: bytes, actions: Iterable[Any], reset_kwargs: Sequence[Mapping[str, Any]] | None = None
    ) -> Report:
        """Does one op a row, in row order.

        A row that raises does not stop the others: its error is in the report and its state becomes ``FAILED``.

        Args:
            ops: one :class:`~gymbridge.engine.codes.Op` a row.
            actions: one action a row, as the env takes it; those of rows that do not step are ignored.
            reset_kwargs: keyword arguments of each row's reset, where it is reset; None for none.
        """

    def call(self, row: int, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Attribute ``name`` of a row's env, called if it is callable."""

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """Sets an attribute of a row's env."""

    def render(self, row: int) -> Any:
        """What the row's env renders."""

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """What a row's env returns against its spaces, a line each; the env is to be reset before its next step."""

    def close(self) -> None:
        """Closes the envs, each of them even if another's ``close`` raises; the first error is raised at the end."""
