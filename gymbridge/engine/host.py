"""What an engine asks of the thing that runs envs, wherever that is: in this process or in a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from gymbridge.engine.block import Block
from gymbridge.engine.layout import Leaf

__all__ = ["NOTHING", "Engine", "EnvDescription", "Host", "Report"]


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


Description = TypeVar("Description", bound=EnvDescription)


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
    """Runs the envs of a block's rows; the only thing that knows what kind of env they are.

    It is made whole, with its envs, how to run them and the block whose rows they have, one each.
    """

    def run(
        self, ops: bytes, actions: Iterable[Any], reset_kwargs: Sequence[Mapping[str, Any]] | None = None
    ) -> Report:
        """Does one op a row, in row order.

        A row that raises does not stop the others: its error is in the report and its state becomes ``FAILED``. An
        interrupt (what is no ``Exception``) comes through, and the state of each row that had its turn is ``FAILED``.

        Args:
            ops: one :class:`~gymbridge.engine.codes.Op` a row.
            actions: one action a row, as the env takes it; those of rows that do not step are ignored.
            reset_kwargs: keyword arguments of each row's reset, where it is reset; None for none.
        """

    def call(self, row: int, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Attribute ``name`` of a row's env, called if it is callable."""

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """What a row's env returns against its spaces, a line each; the env is to be reset before its next step."""

    def state(self, row: int) -> dict[str, Any]:
        """The state of a row's env, and of the row."""

    def load_state(self, row: int, state: Mapping[str, Any]) -> None:
        """Puts a state back that ``state`` gave."""

    def close(self) -> None:
        """Closes the envs, each of them even if another's ``close`` raises; the first error is raised at the end."""


class Engine(Host, Protocol[Description]):
    """What a front runs: a host of all rows, wherever the envs are, with what they say of themselves and the memory.

    Attributes:
        num_envs: number of envs.
        descriptions: what each env says of itself.
        block: the memory, once ``allocate`` has made it.
    """

    num_envs: int
    descriptions: list[Description]
    block: Block

    def allocate(self) -> None:
        """Makes the block, once the caller has seen from ``descriptions`` that the envs fit together."""
