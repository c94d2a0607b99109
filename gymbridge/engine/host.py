"""What an engine asks of the thing that runs envs, wherever that is: in this process or in a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from gymbridge.engine.block import Block
from gymbridge.engine.dispatch import Arguments
from gymbridge.engine.layout import EnvDescription
from gymbridge.engine.work_counts import EngineStats, Tally

__all__ = [
    "IN_BLOCK",
    "NOTHING",
    "Engine",
    "EnvDescription",
    "EnvHost",
    "Host",
    "HostOptions",
    "Inputs",
    "RemoteHostOptions",
    "Report",
    "joined",
]


Env = TypeVar("Env", contravariant=True)
Description = TypeVar("Description", bound=EnvDescription)
Described = TypeVar("Described", bound=EnvDescription, covariant=True)


class Report:
    """What a round leaves beside the block.

    Attributes:
        steps: row -> what its step gave that has no place in the block: a gymnasium env's info, say. A dict, or what a
            kind of host has instead.
        resets: row -> the same of its reset.
        errors: row -> the exception that it raised.
        lost: the rows whose worker was replaced: their step reached no env, see
            :class:`~gymbridge.engine.lost_rows.LostRows`.
    """

    __slots__ = ("errors", "lost", "resets", "steps")

    def __init__(self) -> None:
        self.steps: Any = {}
        self.resets: Any = {}
        self.errors: dict[int, Exception] = {}
        self.lost: set[int] = set()


NOTHING = Report()
"""The report of a round that leaves nothing: most rounds. It is shared, and refuses to be written to."""

IN_BLOCK = Report()
"""The report of a round that leaves nothing but infos in the block; shared and read-only as ``NOTHING`` is."""

for _report in (NOTHING, IN_BLOCK):
    _report.steps = _report.resets = MappingProxyType({})
    _report.errors = MappingProxyType({})  # type: ignore[assignment]
    _report.lost = frozenset()  # type: ignore[assignment]


def joined(one: Report, other: Report) -> Report:
    """One report of two rounds of other rows."""
    for own, rest in ((one, other), (other, one)):
        if own is NOTHING or (own is IN_BLOCK and rest is not NOTHING):
            return rest
    one.steps.update(other.steps)
    one.resets.update(other.resets)
    one.errors.update(other.errors)
    one.lost |= other.lost
    return one


class Host(Protocol):
    """Runs the envs of a block's rows; the only thing that knows what kind of env they are.

    It is made whole, with its envs, how to run them and the block whose rows they have, one each.
    """

    def run(self, ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None = None) -> Report:
        """Does one op a row, in row order.

        A row that raises does not stop the others: its error is in the report and its state becomes ``FAILED``. An
        interrupt (what is no ``Exception``) comes through, and the state of each row that had its turn is ``FAILED``.

        Args:
            ops: one :class:`~gymbridge.engine.codes.Op` a row.
            inputs: what the rows are given, in the form that the host takes; of gymnasium envs the actions, a batch a
                leaf.
            reset_kwargs: keyword arguments of each row's reset, where it is reset; None for none.
        """

    def attribute(self, row: int, name: str) -> Any:
        """Attribute ``name`` of a row's env."""

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """Sets attribute ``name`` of a row's env."""

    def call(self, row: int, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Attribute ``name`` of a row's env, called if it is callable."""

    def follow(self, row: int, path: Sequence[str], call: Arguments | None = None) -> Any:
        """An attribute of an attribute of … a row's env, which may live elsewhere.

        Args:
            path: the names, from the env on.
            call: arguments and keyword arguments with which what is found there is called.

        Returns:
            What the call gave. Without a call what is found, or a :class:`~gymbridge.engine.dispatch.Kept` in place of
            what cannot leave its env: something that can be called, or that cannot be pickled.
        """

    def seed(self, row: int, seed: int | None, static_seed: bool) -> None:
        """Gives a row's env a seed for its next reset, or takes back with None what waits for one.

        Args:
            seed: of the env; of the first of its envs, where it is a batch.
            static_seed: all envs of such a batch get this seed.
        """

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """What a row's env returns against its spaces, a line each; the env is to be reset before its next step."""

    def state(self, row: int) -> dict[str, Any]:
        """The state of a row's env, and of the row."""

    def load_state(self, row: int, state: Mapping[str, Any]) -> None:
        """Puts a state back that ``state`` gave."""

    def close(self) -> None:
        """Closes the envs, each of them even if another's ``close`` raises; the first error is raised at the end."""


class EnvHost(Host, Protocol):
    """A host that calls the envs itself."""

    def count(self, tally: Tally) -> None:
        """Has the steps and resets of the envs in the rounds that follow counted there."""


class HostOptions(Protocol[Env, Described]):
    """How a front wants envs of one kind to be run; it pickles."""

    def describe(self, env: Env) -> Described:
        """What an env says of itself."""

    def host(self, envs: Sequence[Env], block: Block) -> EnvHost:
        """The host that runs the envs over a block, one a row; it closes them."""


class Inputs(Protocol):
    """How a round's inputs reach hosts in other processes: through the block's ``input``, and beside it what must.

    The caller's side writes and takes apart, over the block of all rows; each host's side reads, over its own rows.
    """

    def write(self, inputs: Any) -> Any:
        """Writes what has its place in the block.

        Args:
            inputs: what ``run`` was given.

        Returns:
            What is to travel beside the block; None for nothing, as is usual.
        """

    def write_rows(self, rows: Sequence[int], inputs: Any) -> Any:
        """As ``write``, for inputs of these rows alone, in this order, of which ``part`` counts from zero."""

    def part(self, beside: Any, start: int, stop: int) -> Any:
        """What the host of the rows ``start`` to ``stop - 1`` is to get of what ``write`` gave; it pickles."""

    def read(self, beside: Any) -> Any:
        """In the worker: the inputs as its host takes them, the host's own.

        Args:
            beside: what ``part`` gave; None for nothing.
        """


class RemoteHostOptions(HostOptions[Any, Described], Protocol[Described]):
    """How a front wants envs to be run in workers, whose hosts, envs and descriptions nobody else holds.

    It pickles, and so do the descriptions. What is imported to unpickle it, a worker imports.
    """

    @property
    def kinds(self) -> tuple[type, ...]:
        """What the makers may give; ``gymnasium.Env`` comes first."""

    def inputs(self, descriptions: Sequence[Any], block: Block) -> Inputs:
        """How the inputs of a round reach the hosts; made by the caller and by each worker.

        Args:
            descriptions: of the envs of the block's rows.
            block: of all rows for the caller, of its own for a worker.
        """


class Engine(Host, Protocol[Description]):
    """What a front runs: a host of all rows, wherever the envs are, with what they say of themselves and the memory.

    Attributes:
        num_envs: number of envs.
        descriptions: what each env says of itself.
        block: the memory, once ``allocate`` has made it.
        counts: what ``stats`` gives, which may be asked when the engine is closed, or gone.
        unsettled: whether ``settle`` is to be called before the block's ``state`` is read, since an interrupted call
            has left something under way.
    """

    num_envs: int
    descriptions: list[Description]
    block: Block
    counts: EngineStats
    unsettled: bool

    def settle(self) -> None:
        """Waits for what an interrupted call has left under way; the rows concerned are ``FAILED`` then."""

    def require_workers(self, rows: Iterable[int] | None = None) -> None:
        """Raises ``WorkerDiedError`` if a worker has died, one of these rows or, without any, one of all."""

    def ask(self, verb: str, row: int, *arguments: Any) -> Any:
        """A verb of the host for one row, which may be one that only this kind of host has.

        Args:
            verb: the name of a method of the host whose first argument is a row.
            row: the row.
            arguments: the other arguments.
        """

    def each(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A verb of :class:`Host` for each row, as far as possible at once.

        Args:
            verb: ``"attribute"``, ``"call"`` or another that is asked of a row.
            arguments: those of each row, after the row's number.
        """

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What the workers have done since the first call, see :meth:`gymbridge.SerialEnv.stats`; they count from then.

        It may be called in any thread, at any time after ``allocate``.

        Args:
            reset: count from zero again.
        """

    def allocate(self) -> None:
        """Makes the block, once the caller has seen from ``descriptions`` that the envs fit together."""
