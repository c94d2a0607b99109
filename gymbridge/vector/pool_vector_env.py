"""A pool of envs through gymnasium's words: actions are sent to some envs, and the first results received."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from tensordict import TensorDict, TensorDictBase

from gymbridge.async_env_pool import AsyncEnvPool
from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.failures import why_not_stepped
from gymbridge.engine.gym_host import GymEnvDescription
from gymbridge.envs.inputs import DeviceLike, env_device
from gymbridge.envs.pool_calls import Wanted, deadline_of
from gymbridge.envs.sent_rows import Sent, together
from gymbridge.errors import UnpicklableError
from gymbridge.specs._bridge import array_of
from gymbridge.vector.actions import array_of_tensor
from gymbridge.vector.autoreset import Autoreset
from gymbridge.vector.reset_arguments import row_seeds
from gymbridge.vector.tensordict_form import TensorDictForm, require_output

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PoolVectorEnv"]

Ids = npt.NDArray[np.int64]
EnvIds = Sequence[int] | npt.NDArray[Any] | torch.Tensor
Results = tuple[Any, Any, Any, Any, dict[str, Any]]


class _Group(NamedTuple):
    """What envs gave that had the same work."""

    env_id: Ids
    latest: TensorDictBase
    """Each env's latest observation and infos."""
    outcome: TensorDictBase | None
    """Reward and flags; None of envs that were reset."""
    final: TensorDictBase | None
    """Where envs were reset in the step that ended their episode: the observations and infos before that."""


class PoolVectorEnv(OneCallAtATime):
    """A pool through gymnasium's words, as EnvPool's users know it: ``send`` actions, ``recv`` the first results.

    ``recv`` waits for ``batch_size`` of the envs that have been given work, and has what these give, in the order of
    their numbers, with the numbers as ``infos["env_id"]``. ``send`` gives those envs, or any others that wait for it,
    their next actions. With a ``batch_size`` of all envs, which it is unless told, ``step`` is that of a vector env.

    The autoreset modes are gymnasium's: with ``NEXT_STEP`` an env whose episode has ended is reset by the next ``send``
    for it, which ignores its action; its result is the first observation, with reward 0 and flags False. With
    ``SAME_STEP`` it is reset at once, and ``infos["final_obs"]`` and ``infos["final_info"]`` have the end. With
    ``DISABLED`` it has to be reset, with ``async_reset(env_id)``, before it is sent an action.

    Spaces, values and infos are those of :class:`~gymbridge.vector.TensorDictVectorEnv`: rewards have the precision of
    the env's ``reward_dtype``, and infos are those that the env was told to keep, ``GymEnv(..., info="auto")`` say. An
    info of an env's own at ``"env_id"`` is not shown.

    It is no ``gymnasium.vector.VectorEnv``: row ``k`` is another env in each batch, and wrappers that keep something
    for each row, returns or statistics, would mix the envs. Where all envs are waited for,
    ``TensorDictVectorEnv(pool)`` is one.

    Args:
        pool: the pool; it is closed with this, and its batch calls are this one's while it is in use.
        batch_size: how many results a ``recv`` has; all ``N`` unless given.
        autoreset_mode: an ``AutoresetMode`` or its value.
        output: ``"numpy"``: observations in their spaces' dtypes, rewards float64. ``"torch"``: tensors, rewards in the
            env's dtype. Infos are numpy either way.
        device: where tensors are to be, with ``output="torch"``; None leaves each where the env has it.

    Attributes:
        pool, batch_size, autoreset_mode: as given.
        num_envs: ``N``, all envs of the pool.
        all_env_ids: int64 ``[N]``: 0 to ``N - 1``.
        single_observation_space, single_action_space: the spaces of one env.
        observation_space, action_space: those of a batch of ``batch_size``.
        metadata, spec, render_mode: the first env's.
        closed: it was closed.

    Raises:
        TypeError: no ``AsyncEnvPool``; a ``batch_size`` that is no int; or a dtype that the device lacks.
        ValueError: a ``batch_size`` that is not 1 to ``N``; envs that differ in their specs; what
            :class:`~gymbridge.vector.TensorDictVectorEnv` refuses besides.
        UnsupportedSpaceError: a spec without a space.

    Example:
        >>> import numpy as np
        >>> from gymbridge import AsyncEnvPool
        >>> envs = PoolVectorEnv(AsyncEnvPool(["CartPole-v1"] * 4), batch_size=2)
        >>> envs.async_reset(seed=0)
        >>> for _ in range(10):
        ...     observations, rewards, terminations, truncations, infos = envs.recv()
        ...     envs.send(np.ones(2, int), infos["env_id"])
        >>> observations.shape, infos["env_id"].shape
        ((2, 4), (2,))
        >>> envs.close()
    """

    def __init__(
        self,
        pool: AsyncEnvPool,
        batch_size: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        output: Literal["numpy", "torch"] = "numpy",
        device: DeviceLike | None = None,
    ):
        self.closed = True  # until all is well
        if not isinstance(pool, AsyncEnvPool):
            raise TypeError(f"pool: got {type(pool).__name__}, expected an AsyncEnvPool")
        require_output(output, device)
        self._autoreset = Autoreset(autoreset_mode)
        if len(pool.batch_size) != 1:
            raise ValueError(f"pool: got one of batch size {[*pool.batch_size]}, expected one batch dim, [N]")
        self.pool = pool
        self.num_envs = pool.num_envs
        self.batch_size = self.num_envs if batch_size is None else _batch_size(batch_size, self.num_envs)
        self.all_env_ids: Ids = np.arange(self.num_envs)
        described = pool.engine.descriptions[0]
        gym_env = described if isinstance(described, GymEnvDescription) else None
        self._keeps_root = gym_env is None  # gymnasium envs have their state in themselves
        target = None if device is None else env_device(device)
        self._form = TensorDictForm(pool, gym_env, as_torch=output == "torch", device=target)
        self._forms: dict[int, TensorDictForm] = {self.num_envs: self._form}
        self.single_observation_space = self._form.single_observation_space
        self.single_action_space = self._form.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.batch_size)
        self.action_space = batch_space(self.single_action_space, self.batch_size)
        self.metadata = {**self._told("metadata", {}), "autoreset_mode": self.autoreset_mode}
        self.spec = self._told("spec", None)
        self.render_mode = self._told("render_mode", None)
        self._roots: dict[int, tuple[Sent, int]] = {}
        """Env -> the TensorDict with what it goes on from, and its row there; of TensorDict envs."""
        self._held: list[_Group] = []
        """What envs gave that were heard when another raised, or that came before it was too late."""
        self.closed = False

    def _told(self, name: str, otherwise: Any) -> Any:
        try:
            return self.pool.engine.attribute(0, name)
        except (AttributeError, UnpicklableError):
            return otherwise

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """What happens at the end of an episode."""
        return self._autoreset.mode

    def __len__(self) -> int:
        """How many envs the pool has."""
        return self.num_envs

    def __repr__(self) -> str:
        """How many envs there are, and how many results a receive has."""
        return f"{type(self).__name__}({self.num_envs} envs, batch_size={self.batch_size})"

    # ---------------------------------------------------------------- work handed out

    @exclusive
    def send(self, actions: Any, env_id: EnvIds | None = None) -> None:
        """Gives envs their next actions; :meth:`recv` has what they give.

        Args:
            actions: an action for each of these envs, in the order of ``env_id``: numpy, torch on any device, a list,
                or a dict or tuple of these. It may be changed afterwards.
            env_id: the envs, ints; all of them, in order, unless given.

        Raises:
            AlreadyPendingCallError: an env has work under way, or a result that was not received; the message names it.
            ResetNeeded: an env that has to be reset first.
            ValueError, TypeError, KeyError, SpecError: actions that do not fit the action space, or another number of
                them than of envs; no such env, or one twice. No env has been given anything then.
            WorkerDiedError: the worker of an env is dead.
            ClosedEnvironmentError: it is closed.
        """
        self._require_open("send")
        self._send("send", actions, env_id)

    @exclusive
    def async_reset(
        self,
        env_id: EnvIds | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Has envs be reset; :meth:`recv` has their first observations, with reward 0 and flags False.

        Args:
            env_id: the envs; all of them unless given.
            seed: one int, of which env ``i`` gets ``seed + i``, or a list with a seed or None for each env of
                ``env_id``. TensorDict envs take seeds while nothing is under way only.
            options: handed to the reset of each env.

        Raises:
            AlreadyPendingCallError: an env has work under way, or a result that was not received.
            gymnasium.error.Error: a negative seed.
            ValueError, TypeError: no such env, or one twice; what is no seed, or a wrong number of them.
        """
        self._require_open("async_reset")
        self._send_reset("async_reset", env_id, seed, options)

    # ---------------------------------------------------------------- results

    @exclusive
    def recv(self, timeout: float | None = None) -> Results:
        """What the first ``batch_size`` of the envs give that have been given work.

        Args:
            timeout: seconds to wait; None for ever, 0 to take what is ready.

        Returns:
            observations, rewards ``[batch_size]``, terminations and truncations ``[batch_size]`` bool, and infos with
            ``"env_id"``, int64 ``[batch_size]``: row ``k`` of all of it is env ``infos["env_id"][k]``'s, by rising
            numbers. All is the caller's own.

        Raises:
            NoAsyncCallError: fewer than ``batch_size`` envs have been given work.
            TimeoutError: fewer came in time; nothing is lost.
            WorkerDiedError: the worker of an env is dead.
            ClosedEnvironmentError: it is closed.

        What an env raises comes through, one error a call, with ``env_index``; that env is to be reset, with
        ``async_reset(env_id)``, and what the others gave is there for the next call.
        """
        self._require_open("recv")
        return self._recv("recv", timeout)

    @exclusive
    def step(self, actions: Any, env_id: EnvIds | None = None) -> Results:
        """:meth:`send`, then :meth:`recv`, of which none happens where there would be too little to receive."""
        self._require_open("step")
        self._send("step", actions, env_id, receives=True)
        return self._recv("step", None)

    @exclusive
    def reset(
        self,
        env_id: EnvIds | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Has envs be reset, and waits for the first ``batch_size`` of them.

        Args:
            env_id: the envs, at least ``batch_size`` of them, while nothing is under way. Unless given all of them:
                what is under way, or was not received, is dropped then.
            seed, options: see :meth:`async_reset`.

        Returns:
            Observations, and infos with ``"env_id"``. What the other envs show is there for :meth:`recv`.

        Raises:
            AlreadyPendingCallError: envs have work under way, and not all are to be reset: ``async_reset(env_id)`` and
                ``recv`` do that.
            Exception: what :meth:`async_reset` and :meth:`recv` raise.
        """
        self._require_open("reset")
        if env_id is not None:
            self._require_none_pending("reset", self._pending())
        else:
            _ = row_seeds(seed, self.num_envs)  # refused before anything is dropped
            self.pool._drop()
            self._held.clear()
        self._send_reset("reset", env_id, seed, options, receives=True)
        observations, _, _, _, infos = self._recv("reset", None)
        return observations, infos

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What the envs have done and what has gone through the pool, see :meth:`gymbridge.AsyncEnvPool.stats`."""
        return self.pool.stats(reset=reset)

    def close(self) -> None:
        """Closes the pool with its envs, whatever is under way; once. A receive in another thread has an error."""
        if self._call_under_way in ("recv", "step", "reset"):
            self.pool._end_receives(of=self)
        self._close()

    @exclusive
    def _close(self) -> None:
        if not self.closed:
            self.closed = True
            self._held.clear()
            self._roots.clear()
            self.pool.close(raise_if_closed=False)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the pool."""
        self.close()

    def _require_open(self, call: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{call}: the vector env is closed")

    # ---------------------------------------------------------------- what goes in

    def _pending(self) -> list[int]:
        """The envs that have work under way, or whose results were not received."""
        return [*self.pool._calls.busy, *(int(row) for group in self._held for row in group.env_id)]

    def _require_none_pending(self, call: str, pending: Collection[int]) -> None:
        if pending:
            raise AlreadyPendingCallError(
                f"{call}: envs {sorted(pending)} have work under way, or results that were not received: recv "
                f"them first",
                call,
            )

    def _rows(self, call: str, env_id: EnvIds | None, *, receives: bool) -> Ids:
        """The envs, none of which has anything to do."""
        rows = self.all_env_ids if env_id is None else _env_ids(call, env_id, self.num_envs)
        pending = {*self._pending()}
        self._require_none_pending(call, pending.intersection(rows.tolist()))
        if receives and len(pending) + len(rows) < self.batch_size:
            raise ValueError(
                f"{call}: got {len(rows)} envs, with {len(pending)} under way, expected batch_size={self.batch_size} "
                f"together or more, to wait for"
            )
        return rows

    def _send(self, call: str, actions: Any, env_id: EnvIds | None, *, receives: bool = False) -> None:
        rows = self._rows(call, env_id, receives=receives)
        ops = np.frombuffer(self._step_ops(call, rows), np.uint8)
        resets = ops == Op.RESET
        td = self._inputs(rows)
        self._form_of(len(rows)).write_actions(td, actions, ignored=resets if resets.any() else None)
        if not resets.any():
            self._send_steps(td, rows)
            return
        if not resets.all():
            self._send_steps(td[torch.from_numpy(~resets)], rows[~resets])
        self.pool.async_reset_send(self._given_to_reset(rows[resets]), torch.from_numpy(rows[resets]))

    def _send_steps(self, td: TensorDictBase, rows: Ids) -> None:
        send = self.pool.async_step_and_maybe_reset_send if self._autoreset.is_same_step else self.pool.async_step_send
        send(td, torch.from_numpy(rows))

    def _step_ops(self, call: str, rows: Ids) -> bytes:
        """What is to be done with each of these envs by their mode."""
        all_states = self.pool.engine.block.state.tobytes()
        states = np.frombuffer(all_states, np.uint8)[rows]
        refused = [*rows[self._autoreset.refused(states.tobytes())], *rows[states == RowState.NEW]]
        if refused:
            why = why_not_stepped(all_states, sorted({*map(int, refused)}))
            raise ResetNeeded(f"{call}: {why}: reset them first, with async_reset(env_id) or reset()")
        return self._autoreset.ops(states.tobytes())

    def _inputs(self, rows: Ids) -> TensorDictBase:
        """What these envs go on from, the caller's to change."""
        roots = [self._roots[row] for row in rows.tolist() if row in self._roots]
        td = together(roots, dense=True) if len(roots) == len(rows) else None
        return TensorDict({}, [len(rows)], device=self.pool.device) if td is None else td.copy()

    def _given_to_reset(self, rows: Ids) -> TensorDictBase | None:
        return self._inputs(rows) if self._keeps_root else None

    def _send_reset(
        self,
        call: str,
        env_id: EnvIds | None,
        seed: int | Sequence[int | None] | None,
        options: Mapping[str, Any] | None,
        *,
        receives: bool = False,
    ) -> None:
        rows = self._rows(call, env_id, receives=receives)
        numbers = rows.tolist()
        if isinstance(seed, (int, np.integer)):
            own = row_seeds(seed, self.num_envs)
            seeds = [own[row] for row in numbers]
        else:
            seeds = row_seeds(seed, len(rows))
        kwargs: list[dict[str, Any]] = [{} if options is None else {"options": dict(options)} for _ in rows]
        if not self._keeps_root:
            for own_kwargs, one in zip(kwargs, seeds, strict=True):
                own_kwargs.update({} if one is None else {"seed": one})
        elif env_id is None and isinstance(seed, (int, np.integer)):
            self.pool.set_seed(int(seed))
        else:
            for row, one in zip(numbers, seeds, strict=True):
                if one is not None:
                    self.pool.engine.seed(row, one, False)
        given = None if env_id is None else self._given_to_reset(rows)
        if env_id is None:
            self._roots.clear()
        self.pool.async_reset_send(given, torch.from_numpy(rows), **({"list_of_kwargs": kwargs} if any(kwargs) else {}))

    # ---------------------------------------------------------------- what comes out

    def _form_of(self, num_rows: int) -> TensorDictForm:
        """What reads and writes the TensorDicts of so many envs."""
        if num_rows not in self._forms:
            self._forms[num_rows] = self._form.of_rows(num_rows)
        return self._forms[num_rows]

    def _recv(self, call: str, timeout: float | None) -> Results:
        deadline = deadline_of(timeout)
        missing = self.batch_size - sum(len(group.env_id) for group in self._held)
        under_way = self.pool._calls.under_way
        if missing > under_way:
            raise NoAsyncCallError(
                f"{call}: got {self.batch_size - missing + under_way} envs with work under way or unread results, "
                f"expected batch_size={self.batch_size} or more: send them actions, or async_reset them, first",
                call,
            )
        if missing:
            received: list[tuple[Op, Any]] = []
            try:
                self.pool._receive_any(Wanted(missing, missing, deadline), received)
            finally:
                self._held += [self._group(op, made) for op, made in received]
        groups, self._held = self._held, []
        return self._results(groups)

    def _group(self, op: Op, made: Any) -> _Group:
        """What envs gave, of which each goes on from its root."""
        td = made[0] if isinstance(made, tuple) else made
        env_id = td["env_index"].numpy()
        if op == Op.RESET:
            self._keep_root(env_id, td)
            return _Group(env_id, td, None, None)
        following = td["next"]
        if op == Op.STEP:
            if self._keeps_root:
                self._keep_root(env_id, self.pool.step_mdp(td))
            return _Group(env_id, following, following, None)
        root = made[1]
        self._keep_root(env_id, root)
        if not array_of(following["done"]).any():
            return _Group(env_id, following, following, None)
        return _Group(env_id, root, following, following)

    def _keep_root(self, env_id: Ids, root: TensorDictBase) -> None:
        if self._keeps_root:
            root = root.exclude("env_index")
            sent = Sent(root)
            self._roots.update((row, (sent, at)) for at, row in enumerate(env_id.tolist()))

    def _results(self, groups: list[_Group]) -> Results:
        """What is handed out of all groups together, by rising numbers of the envs."""
        env_id = np.concatenate([group.env_id for group in groups])
        order = np.argsort(env_id)
        columns, outcomes = [], []
        infos: dict[str, Any] = {}
        for group, places in zip(groups, _places(groups, order), strict=True):
            form = self._form_of(len(group.env_id))
            everyone = np.ones(len(group.env_id), np.bool_)
            columns.append(form.parts(group.latest, copy=self._keeps_root))
            outcome = form.no_outcome() if group.outcome is None else group.outcome
            outcomes.append(form.outcome(outcome, copy=self._keeps_root))
            told: dict[str, Any] = {}
            if group.final is not None:
                ended = array_of(group.final["done"]).reshape(-1)
                final = form.final_observations(form.parts(group.final, copy=False), ended)
                told["final_obs"], told["_final_obs"] = final, ended.copy()
                told["final_info"], told["_final_info"] = form.infos(group.final, ended), ended.copy()
            told.update(form.infos(group.latest, everyone))
            _add_rows(infos, told, places, len(order))
        parts = [_in_order(part, order) for part in zip(*columns, strict=True)]
        outcome_of_all = [_in_order(part, order) for part in zip(*outcomes, strict=True)]
        infos["env_id"] = env_id[order]
        return (self._form.joined(parts), *outcome_of_all, infos)


def _batch_size(given: Any, num_envs: int) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"batch_size: got {given!r} of type {type(given).__name__}, expected an int")
    if not 1 <= given <= num_envs:
        raise ValueError(f"batch_size: got {given}, expected 1 to {num_envs}, the number of envs")
    return int(given)


def _env_ids(call: str, given: Any, num_envs: int) -> Ids:
    """The numbers of envs.

    Raises:
        TypeError, ValueError: no ints, none at all, one that no env has, or one twice.
    """
    array = np.asarray(array_of_tensor("env_id", given) if hasattr(given, "detach") else given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{call}: got env_id {given!r}, expected the ints of some envs")
    rows = array.astype(np.int64)
    if not rows.size:
        raise ValueError(f"{call}: got no env_id, expected that of one env or more")
    if rows.min() < 0 or rows.max() >= num_envs:
        raise ValueError(f"{call}: got env_id {rows.tolist()}, expected some of 0 to {num_envs - 1}")
    if len(np.unique(rows)) < len(rows):
        raise ValueError(f"{call}: got env_id {rows.tolist()}, expected each env once")
    return rows


def _places(groups: Sequence[_Group], order: Ids) -> list[Ids]:
    """Where the rows of each group stand in the batch."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return np.split(place, np.cumsum([len(group.env_id) for group in groups])[:-1])


def _in_order(parts: Sequence[Any], order: Ids) -> Any:
    """Rows of several batches as one, in this order."""
    first = parts[0]
    if isinstance(first, tuple):
        rows = [row for part in parts for row in part]
        return tuple(rows[at] for at in order)
    if len(parts) == 1:  # in order already
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat([*parts])[torch.from_numpy(order).to(first.device)]
    return np.concatenate(parts)[order]


def _add_rows(infos: dict[str, Any], own: Mapping[str, Any], places: Ids, num_rows: int) -> None:
    """Puts the infos of some rows of a batch into those of all; what a row does not have is zero, False or None."""
    for key, value in own.items():
        if isinstance(value, dict):
            _add_rows(infos.setdefault(key, {}), value, places, num_rows)
            continue
        if key not in infos:
            empty = None if value.dtype.hasobject else 0
            infos[key] = np.full((num_rows, *value.shape[1:]), empty, value.dtype)
        infos[key][places] = value
