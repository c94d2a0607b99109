"""EnvPool's envs as TensorDict envs; needs the extra ``gymbridge[envpool]``.

What EnvPool does at an episode's end, and what the TensorDict env does:

=====================  ==================================  ============================================================
when                   EnvPool                             here
=====================  ==================================  ============================================================
the last step          the final observation               the same, under ``"next"``
the step after that    ignores the action; gives the       ``step_and_maybe_reset`` has had these envs reset, and
                       first observation                   ``td_`` has their first observation; a ``step`` is refused
``reset`` of some      begins new episodes, ended or not   the same: ``"_reset"`` picks
=====================  ==================================  ============================================================

An EnvPool is synchronous where its ``batch_size`` is its ``num_envs``: it is given work for some envs, and gives what
all of these did. With a smaller ``batch_size`` it gives what the first ``batch_size`` envs did, whichever these are,
and nothing as long as fewer are at work: :class:`EnvPoolCalls` keeps count.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from tensordict import TensorDict, TensorDictBase

try:
    import envpool
    from envpool.python.envpool import EnvPoolMixin
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "envpool":
        raise
    raise ImportError(
        "gymbridge.interop.envpool needs EnvPool, which is not installed: pip install 'gymbridge[envpool]'"
    ) from error

from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.counts import count_of
from gymbridge.engine.failures import why_not_stepped
from gymbridge.envs.base import EnvBase
from gymbridge.envs.inputs import DeviceLike, as_seed
from gymbridge.envs.pool_calls import Wanted
from gymbridge.envs.sent_rows import taken_over
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordicts import entry, put
from gymbridge.envs.transitions import keep_asleep, put_next
from gymbridge.errors import UnpicklableError
from gymbridge.interop.envpool_calls import EnvPoolCalls
from gymbridge.interop.envpool_layout import Blank, Chunk, EnvPoolLayout, gathered, put_rows
from gymbridge.specs import Composite

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MultiThreadedEnv", "MultiThreadedEnvWrapper"]

Ids: TypeAlias = npt.NDArray[np.int32]
_Result = TypeVar("_Result")
EnvIndex: TypeAlias = Sequence[int] | npt.NDArray[Any] | torch.Tensor

_RUNNING, _ENDED, _FAILED, _NEW = (
    int(state) for state in (RowState.RUNNING, RowState.ENDED, RowState.FAILED, RowState.NEW)
)

_SEEDS_END = 2**31

_RENDERING = ("_render_mode", "_render_env_id", "_render_width", "_render_height", "_render_camera_id")
"""What ``envpool.make`` sets on an EnvPool that it has made."""


class MultiThreadedEnvWrapper(OneCallAtATime, EnvBase):
    """An EnvPool as a TensorDict env of batch size ``[N]``.

    Masks pick envs, ``"_reset"`` in the middle of an episode too. An EnvPool with a ``batch_size`` of its own, less
    than ``num_envs``, is there for ``async_step_send`` and its like. It gives so many envs at a time, so that it is
    reset and stepped whole only, and that where ``num_envs`` is a multiple of ``batch_size``; with ``batch_size=1``
    masks and everything else are had too.

    Envs of several players have what each of these has under ``"players"``, ``[N, num_players]``: ``("players",
    "observation")``, ``("players", "reward")`` and, where all act in each step, ``("players", "action")``. Such an
    EnvPool is never synchronous: ``batch_size=1`` lets it do a part.

    Args:
        env: what ``envpool.make`` gives, of any ``env_type``. It is closed with this env, and must not be reset or
            stepped directly.
        device: device of what is returned; None for the CPU, without a device on the TensorDicts.
        categorical_action_encoding: discrete actions are int64 numbers; with False, one-hot vectors.
        info: None drops the infos; ``"auto"`` keeps all that EnvPool gives; a ``Composite`` of specs without a batch
            names those to keep. They are leaves under ``"info"``, ``("info", "elapsed_step")`` for example, with a bool
            ``[N]`` under ``("info", "_mask")``.
        reward_dtype: dtype of the reward ``[N, 1]``.

    Attributes:
        env: the EnvPool. Its public attributes are attributes of this env too.
        num_workers: ``N``.
        min_get: how many envs ``async_step_recv`` and its like wait for unless told; 1, and it may be set.

    Raises:
        TypeError: no EnvPool.
        UnsupportedSpaceError: an env whose actions are several arrays.
        ValueError: an ``info`` that EnvPool does not give.

    Example:
        >>> import envpool
        >>> env = MultiThreadedEnvWrapper(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4))
        >>> env.rollout(20, break_when_any_done=False).batch_size
        torch.Size([4, 20])
        >>> env.close()
    """

    _made_latest: TensorDictBase | None = None
    """What each env shows; out of date where there is a ``_last``."""
    _last: list[npt.NDArray[Any]] | None = None
    """What EnvPool gave in the last step of all envs."""
    _begun: list[npt.NDArray[Any]] | None = None
    """What it then gave of those that ended in it, and were reset at once."""

    def __init__(
        self,
        env: EnvPoolMixin,
        *,
        device: DeviceLike | None = None,
        categorical_action_encoding: bool = True,
        info: Composite | Literal["auto"] | None = None,
        reward_dtype: torch.dtype = torch.float32,
    ):
        if not isinstance(env, EnvPoolMixin):
            raise TypeError(f"env: got {env!r} of type {type(env).__name__}, expected what envpool.make gives")
        self._pool: Any = env
        self._config: Any = env.spec.config
        self.num_workers = int(self._config.num_envs)
        super().__init__(device=device, batch_size=(self.num_workers,))
        self._layout = EnvPoolLayout(
            env.spec,
            device=self.device,
            categorical_action_encoding=categorical_action_encoding,
            info=info,
            reward_dtype=reward_dtype,
        )
        for kind, spec in self._layout.specs.items():
            setattr(self, f"full_{kind}_spec", spec)
        self._form = self._layout.form(self.num_workers)
        self._action_paths = leaf_keys(self.full_action_spec)
        # how many envs EnvPool gives at a time; 0 is EnvPool's own word for all of them
        self._batch = int(self._config.batch_size) or self.num_workers
        self._is_synchronous = self._batch == self.num_workers and self._layout.num_players == 1
        self.partial_step = self.partial_reset = self._is_synchronous or self._batch == 1
        self._is_quick = self._form.is_on_cpu and self._is_synchronous
        self._all_ids: Ids = np.arange(self.num_workers, dtype=np.int32)
        self._states = np.full(self.num_workers, _NEW, np.uint8)
        self._all_run = False
        """No env has to be reset before it is stepped."""
        self._is_to_be_made_anew = False
        """At the next reset of all: EnvPool takes seeds when it is made only, and after an interrupt nobody knows what
        it still has to give."""
        self._unseen: list[Ids] = []
        """The envs that were reset or stepped in the call that is under way."""
        self.min_get = 1
        self._calls = EnvPoolCalls(self._layout, self._batch)
        _envs.add(self)

    # ---------------------------------------------------------------- reset and step

    @exclusive
    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """See :meth:`EnvBase.reset`; ``seed`` is for all envs, as :meth:`set_seed` has it."""
        self._require_nothing_under_way("reset")
        return self._seen(super().reset, tensordict, **kwargs)

    @exclusive
    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See :meth:`EnvBase.step`."""
        self._require_nothing_under_way("step")
        return self._seen(super().step, tensordict)

    @exclusive
    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """See :meth:`EnvBase.step_and_maybe_reset`."""
        self._require_nothing_under_way("step_and_maybe_reset")
        if (  # the usual case, in a hurry: see Blank
            type(tensordict) is TensorDict
            and self._is_quick
            and not self.is_closed
            and tensordict.batch_size == self._batch_size
            and tensordict.device == self._device
            and not tensordict.is_locked
            and entry(tensordict, "next") is None
            and entry(tensordict, "_step") is None
        ):
            return tensordict, self._advance_all(tensordict)
        return self._seen(super().step_and_maybe_reset, tensordict)

    def _seen(self, call: Callable[..., _Result], tensordict: TensorDictBase | None, **kwargs: Any) -> _Result:
        """Makes a call. Envs that did something which an error or interrupt keeps from the caller are to be reset."""
        self._unseen = []
        try:
            return call(tensordict, **kwargs)
        except BaseException:
            for ids in self._unseen:
                self._states[ids] = _FAILED
                self._all_run = False
            raise

    def _reset(self, tensordict: TensorDictBase | None, *, seed: int | None = None) -> TensorDict:  # type: ignore[override]
        ids = self._picked(tensordict, "_reset")
        if seed is not None:
            if len(ids) < self.num_workers:
                raise ValueError(
                    f"seed: got {seed} for envs {ids.tolist()}, expected a reset of all, which EnvPool seeds"
                )
            self._set_seed(self._checked_seed(seed, static_seed=False))
        return self._form.root(self._whole(self._reset_round(ids)))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        ids = self._picked(tensordict, "_step")
        some = None if ids is self._all_ids else ids
        self._require_running("step", ids)
        actions = self._form.actions(tensordict, some)
        return self._form.following(self._whole(self._step_round(ids, actions)))

    def _next(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        """See :class:`EnvBase`; where all envs step there is nothing to merge."""
        if mask is not None:
            return super()._next(tensordict, mask)
        self._require_running("step", self._all_ids)
        chunk = self._step_round(self._all_ids, self._form.actions(tensordict))
        self._latest = self._form.following(chunk.copied())
        return self._form.following(chunk)

    def _advance(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> tuple[TensorDictBase, TensorDictBase]:
        """See :class:`EnvBase`; what the reset gives is put into its rows alone."""
        tensordict = put_next(tensordict, self._next(tensordict, mask))
        root = self.step_mdp(tensordict)
        ended = self._states == _ENDED
        if mask is not None:
            keep_asleep(root, tensordict, mask, self._shown(tensordict))
            ended &= mask.numpy()
        if ended.any():
            if not self.partial_reset:
                self._unseen.clear()  # what is refused is the reset: the step is in the TensorDict
            self._require_partial_reset(None if ended.all() else torch.from_numpy(ended))
            ids = np.flatnonzero(ended).astype(np.int32)
            begun = self._layout.form(len(ids)).root(self._reset_round(ids))
            latest = self._latest
            assert latest is not None  # of the step
            for made in (root, latest):
                put_rows(made, ids, begun)
        return tensordict, root

    def _advance_all(self, tensordict: TensorDict) -> TensorDictBase:
        """The same where all envs step, and nothing stands in the way: gives the root, and ``next`` in place."""
        if not self._all_run:
            self._require_running("step", self._all_ids)
        pool, layout, form = self._pool, self._layout, self._form
        sent = layout.sent(self._all_ids, form.actions(tensordict))
        begun: list[npt.NDArray[Any]] | None = None
        try:
            pool._send(sent)
            blank = Blank(form)
            self._spec_plan.next_root.carry(tensordict, blank.root)
            put(tensordict, ("next",), blank.following)  # which is known to fit
            states = pool._recv()
            ends = layout.ends(states)
            if ends is None:
                blank.fill(states)
            else:
                ids = ends[0].nonzero()[0].astype(np.int32)
                pool._reset(ids)
                blank.fill(states)
                blank.end(*ends)
                begun = pool._recv()
                blank.begin(ids, begun)
        except BaseException:
            tensordict.pop("next", None)
            self._lose()
            raise
        self._last, self._begun = states, begun
        return blank.root

    @property
    def _latest(self) -> TensorDictBase | None:
        """See :class:`EnvBase`; after a step of all envs it is made when somebody asks for it."""
        if self._last is not None:
            last = self._layout.chunk(self._last, ordered=True)
            if self._begun is not None:
                last = last.with_begun(self._layout.chunk(self._begun, ordered=True))
            self._made_latest, self._last = self._form.following(last), None
        return self._made_latest

    @_latest.setter
    def _latest(self, latest: TensorDictBase | None) -> None:
        self._made_latest, self._last = latest, None

    def _picked(self, tensordict: TensorDictBase | None, name: str) -> Ids:
        """The envs that a mask picks."""
        mask = None if tensordict is None else entry(tensordict, name)
        return self._all_ids if mask is None else np.flatnonzero(mask.cpu().numpy()).astype(np.int32)

    def _whole(self, chunk: Chunk) -> Chunk:
        return chunk if len(chunk.ids) == self.num_workers else self._layout.spread(chunk)

    def _require_running(self, call: str, ids: Ids) -> None:
        states = self._states.tobytes()
        rows = [int(row) for row in ids if states[row] != _RUNNING]
        if rows:
            raise ResetNeeded(f"{call}: {why_not_stepped(states, rows)}: reset them before they are stepped")

    # ---------------------------------------------------------------- what EnvPool does

    def _reset_round(self, ids: Ids) -> Chunk:
        """Has envs begin an episode each, and waits for them."""
        self._require_receivable("reset", len(ids))
        self._make_ready("reset", ids)
        try:
            self._pool._reset(ids)
            chunk = self._received(len(ids))
            self._unseen.append(ids)
            self._states[ids] = _RUNNING
            self._all_run = not self._states.any()
        except BaseException:
            self._lose()
            raise
        return chunk

    def _step_round(self, ids: Ids, actions: npt.NDArray[Any]) -> Chunk:
        """Steps envs and waits for them."""
        self._require_receivable("step", len(ids))
        try:
            self._pool._send(self._layout.sent(ids, actions))
            chunk = self._received(len(ids))
            self._unseen.append(ids)
            if chunk.any_done:
                self._states[chunk.ids[chunk.done]] = _ENDED
                self._all_run = False
        except BaseException:
            self._lose()
            raise
        return chunk

    def _received(self, num_rows: int) -> Chunk:
        """What so many envs did that were given work, all there are."""
        if self._is_synchronous:
            return self._layout.chunk(self._pool._recv(), ordered=True)
        chunks = [self._layout.chunk(self._pool._recv(), ordered=False) for _ in range(num_rows // self._batch)]
        parts = {int(row): (chunk, at) for chunk in chunks for at, row in enumerate(chunk.ids)}
        return gathered([parts[row] for row in sorted(parts)])

    def _require_receivable(self, call: str, num_rows: int) -> None:
        """Refuses work that EnvPool would not hand out: it gives a batch at a time, and waits until that is full."""
        if not self._is_synchronous and num_rows % self._batch:
            raise ValueError(
                f"{call}: got {num_rows} envs, expected a multiple of {self._batch}: this EnvPool has the "
                f"batch_size {self._batch} and hands out so many at a time. With batch_size=1 it does any number, and "
                f"async_{call}_send any where async_{call}_recv takes what comes"
            )

    def _make_ready(self, call: str, ids: Ids) -> None:
        """Makes the EnvPool anew where that is to be, or refuses to go on without."""
        if not self._is_to_be_made_anew:
            return
        if len(ids) == self.num_workers:
            self._make_anew()
        elif (self._states == _FAILED).any():
            states = self._states.tobytes()
            rows = np.flatnonzero(self._states == _FAILED).tolist()
            raise ResetNeeded(f"{call}: got envs {ids.tolist()}, expected all: {why_not_stepped(states, rows)}")

    def _make_anew(self) -> None:
        """Makes another EnvPool of what this one was made of, but for its seeds."""
        own = self._pool
        made = type(own)(type(own.spec)(self._config))
        for name in _RENDERING:
            if name in vars(own):
                setattr(made, name, getattr(own, name))
        self._pool = made
        own.close()
        self._states.fill(_NEW)
        self._all_run = self._is_to_be_made_anew = False
        self._calls.drop()

    def _disown(self) -> None:
        """In a fork: the threads of the EnvPool are in the process that made it, and no call of it would end."""
        if self._pool is not None:
            self._pool = _OfAnotherProcess(self._pool)

    def _lose(self) -> None:
        """An interrupt, or an error, and what the envs did does not reach the caller."""
        self._calls.drop()
        self._states.fill(_FAILED)
        self._all_run = False
        self._is_to_be_made_anew = True

    # ---------------------------------------------------------------- work handed out

    @exclusive
    def async_step_send(self, tensordict: TensorDictBase, env_index: EnvIndex | None = None) -> None:
        """Gives envs a step to do; ``async_step_recv`` has what they give.

        Args:
            tensordict: ``[n]``, with the actions of ``n`` envs. It stays as it is.
            env_index: which envs these are; unless given, what stands at ``"env_index"``, or else all envs in order.

        Raises:
            RuntimeError: the EnvPool is synchronous; or an env has work under way already, or results that were not
                received, and the message names it.
            ValueError, TypeError, IndexError: an index that no env has, two of one, or an int, which would be a lane; a
                TensorDict of another size; an action that does not fit.
            ResetNeeded: an env that ended has not been reset.
        """
        self._send(Op.STEP, "async_step_send", tensordict, env_index)

    @exclusive
    def async_step_and_maybe_reset_send(self, tensordict: TensorDictBase, env_index: EnvIndex | None = None) -> None:
        """Gives envs a step to do, and a reset where that ends their episode; see :meth:`async_step_send`."""
        self._send(Op.STEP_MAYBE_RESET, "async_step_and_maybe_reset_send", tensordict, env_index)

    @exclusive
    def async_reset_send(self, tensordict: TensorDictBase | None = None, env_index: EnvIndex | None = None) -> None:
        """Gives envs a reset to do; with neither argument, all of them. See :meth:`async_step_send`."""
        self._send(Op.RESET, "async_reset_send", tensordict, env_index)

    @exclusive
    def async_step_recv(self, min_get: int | None = None, *, max_get: int | None = None) -> TensorDictBase:
        """What envs give that were sent a step.

        EnvPool gives ``batch_size`` envs at a time, and cannot say whether more are ready: it is asked until there are
        ``min_get``, and what came is handed out up to ``max_get``; the rest is there for the next call.

        Args:
            min_get: how many envs to wait for; the env's ``min_get`` unless given.
            max_get: take no more than these.

        Returns:
            A TensorDict ``[n]``, the caller's own: what was sent, with ``next`` and, as int64 ``[n]``, ``"env_index"``,
            in whose order the rows are.

        Raises:
            RuntimeError: less is under way than is waited for, or so little that EnvPool would not hand it out.
            ValueError, TypeError: ``min_get`` less than 1, or ``max_get`` less than that.
        """
        made: TensorDictBase = self._receive(Op.STEP, "async_step_recv", min_get, max_get)
        return made

    @exclusive
    def async_step_and_maybe_reset_recv(
        self, min_get: int | None = None, *, max_get: int | None = None
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """The same of envs that were sent ``step_and_maybe_reset``: what was sent with ``next``, and the next root.

        An env whose episode ended is handed out when it has been reset, in a later batch of EnvPool's.
        """
        made: tuple[TensorDictBase, TensorDictBase] = self._receive(
            Op.STEP_MAYBE_RESET, "async_step_and_maybe_reset_recv", min_get, max_get
        )
        return made

    @exclusive
    def async_reset_recv(self, min_get: int | None = None, *, max_get: int | None = None) -> TensorDictBase:
        """The same of envs that were sent a reset: what was sent, with observations and flags."""
        made: TensorDictBase = self._receive(Op.RESET, "async_reset_recv", min_get, max_get)
        return made

    def _send(self, op: Op, call: str, tensordict: TensorDictBase | None, env_index: EnvIndex | None) -> None:
        self._require_open(call)
        if self._is_synchronous:
            raise RuntimeError(
                f"{call}: got an EnvPool whose batch_size is its num_envs, {self.num_workers}, expected one with less, "
                f"which hands out envs as they come: MultiThreadedEnv(…, create_env_kwargs={{'batch_size': …}})"
            )
        rows = self._rows(call, tensordict, env_index)
        ids = np.array(rows, np.int32)
        self._calls.require_idle(call, rows)
        if op == Op.RESET:
            own = None if tensordict is None else taken_over(tensordict, (), ("env_index",))
            self._make_ready(call, ids)
            begin = partial(self._pool._reset, ids)
        else:
            if tensordict is None:
                raise TypeError(f"{call}: got None, expected a TensorDict with the action")
            if not self._all_run:
                self._require_running(call, ids)
            own = taken_over(tensordict, self._action_paths, ("env_index",))
            begin = partial(self._pool._send, self._layout.sent(ids, self._layout.form(len(rows)).actions(own)))
        try:
            begin()
            self._calls.sent(op, rows, own)
        except BaseException:
            self._lose()
            raise
        if op == Op.RESET:
            self._states[ids] = _RUNNING
            self._all_run = not self._states.any()

    def _rows(self, call: str, tensordict: TensorDictBase | None, env_index: Any) -> list[int]:
        """The envs that work is for.

        Raises:
            TypeError, ValueError, IndexError: no numbers of envs, or a TensorDict of another size or with a mask.
        """
        if tensordict is not None and not isinstance(tensordict, TensorDictBase):
            raise TypeError(f"{call}: got {type(tensordict).__name__}, expected a TensorDict")
        if env_index is None and tensordict is not None:
            env_index = entry(tensordict, "env_index")
        given = self._all_ids if env_index is None else np.asarray(_on_cpu(env_index))
        if given.shape == (0,):
            raise ValueError(f"{call}: got no env_index, expected that of one env or more")
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise TypeError(
                f"{call}: got env_index {env_index!r}, expected the ints of some envs: there are no lanes here"
            )
        rows: list[int] = given.tolist()
        if min(rows) < 0 or max(rows) >= self.num_workers:
            raise IndexError(f"{call}: got env_index {rows}, expected some of 0 to {self.num_workers - 1}")
        if len({*rows}) < len(rows):
            raise ValueError(f"{call}: got env_index {rows}, expected each env once")
        if tensordict is not None:
            if tensordict.batch_size != (len(rows),):
                raise ValueError(
                    f"{call}: got a TensorDict of batch size {[*tensordict.batch_size]}, expected [{len(rows)}], that "
                    f"of envs {rows}"
                )
            for name in ("_reset", "_step"):
                if entry(tensordict, name) is not None:
                    raise ValueError(f"{call}: got a mask at {name!r}, expected none: env_index picks the envs")
        return rows

    def _receive(self, op: Op, call: str, min_get: int | None, max_get: int | None) -> Any:
        self._require_open(call)
        wanted = Wanted.of(self.min_get if min_get is None else min_get, max_get)
        self._calls.require_under_way(op, wanted.min_get)
        while self._calls.is_to_wait(op, wanted.min_get):
            try:
                self._take(self._layout.chunk(self._pool._recv(), ordered=False))
            except BaseException:
                self._lose()
                raise
        return self._calls.received(op, wanted.max_get, self._spec_plan.next_root)

    def _take(self, chunk: Chunk) -> None:
        """Notes what EnvPool gave, and has it reset envs that ended and are to be."""
        resets = self._calls.take(chunk)
        if len(resets):
            self._pool._reset(resets)
        ended = np.setdiff1d(chunk.ids[chunk.done], resets) if chunk.any_done else resets[:0]
        if len(ended):
            self._states[ended] = _ENDED
            self._all_run = False

    def _require_nothing_under_way(self, call: str) -> None:
        if self._calls.is_busy:
            raise RuntimeError(
                f"{call}: refused while envs {self._calls.busy} have work under way, or results that were not received"
            )

    # ---------------------------------------------------------------- seeds, and the EnvPool itself

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """See :meth:`EnvBase.set_seed`: env ``i`` gets ``seed + i``, as with ``envpool.make(seed=seed)``.

        EnvPool takes seeds when it is made only, and all at once: the next reset of all envs has ``env`` made anew. A
        reset of some leaves the seed waiting.

        Raises:
            TypeError, ValueError: a seed that is no int, a negative one, or one beyond EnvPool's 32 bits.
            ClosedEnvironmentError: the env is closed.
        """
        self._require_open("set_seed")
        seed = self._checked_seed(seed, static_seed)
        following = super().set_seed(seed, static_seed)
        if seed is not None and static_seed:
            self._config = self._config._replace(seed=0, env_seed=[seed] * self.num_workers)
        return following

    def _checked_seed(self, seed: int | None, static_seed: bool) -> int | None:
        seed = as_seed(seed)
        last = None if seed is None else seed + (0 if static_seed else self.num_workers - 1)
        if last is not None and last >= _SEEDS_END:
            raise ValueError(
                f"seed: got {seed} for {self.num_workers} envs, expected seeds below 2**31, as EnvPool has them"
            )
        return seed

    def _set_seed(self, seed: int | None) -> None:
        own = self._pool.spec.config
        self._is_to_be_made_anew = seed is not None or bool((self._states == _FAILED).any())
        self._config = own if seed is None else own._replace(seed=seed, env_seed=[])

    def to(self, device: DeviceLike) -> Self:
        """See :meth:`EnvBase.to`."""
        super().to(device)
        self._layout.to(self.device)
        self._form = self._layout.form(self.num_workers)
        self._is_quick = self._form.is_on_cpu and self._is_synchronous
        return self

    @property
    def env(self) -> Any:
        """The EnvPool.

        Raises:
            ClosedEnvironmentError: it is closed.
        """
        if self._pool is None:
            raise ClosedEnvironmentError(f"env: {type(self).__name__} is closed")
        return self._pool

    def __getattr__(self, name: str) -> Any:
        """Public attributes of the EnvPool: ``config``, ``spec``, ``render`` and the like."""
        if name.startswith("_") or name == "env" or hasattr(type(self), name):
            return object.__getattribute__(self, name)  # which says what is missing
        if self._pool is None:  # an AttributeError, so that hasattr() may ask
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and its EnvPool is closed")
        try:
            return getattr(self._pool, name)
        except AttributeError as error:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and its EnvPool neither") from error

    def __getstate__(self) -> NoReturn:
        name = type(self).__name__
        raise UnpicklableError(f"{name}: an EnvPool cannot be pickled or copied; make the {name} where it is needed")

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the EnvPool, whatever is under way.

        Raises:
            RuntimeError: the env is closed already, unless ``raise_if_closed=False``.
        """
        pool = self._pool
        super().close(raise_if_closed=raise_if_closed)
        self._calls.drop()
        self._pool = None  # its threads end with it
        if pool is not None:
            pool.close()


class _OfAnotherProcess:
    """Stands in a fork for the EnvPool of the process that made it.

    Args:
        pool: that EnvPool. It is never let go of, at the interpreter's end neither: it would wait for its threads.
    """

    def __init__(self, pool: Any):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))

    def close(self) -> None:
        """Nothing: it is closed by the process that made it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(
            "the EnvPool's threads belong to the process that made it, of which this one is a fork: make another here"
        )


_envs: weakref.WeakSet[MultiThreadedEnvWrapper] = weakref.WeakSet()


def _disown_all() -> None:
    for env in list(_envs):
        env._disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)


class MultiThreadedEnv(MultiThreadedEnvWrapper):
    """Envs of EnvPool's own, in threads of C++, as a TensorDict env of batch size ``[N]``.

    Args:
        num_workers: ``N``, EnvPool's ``num_envs``.
        env_name: EnvPool's name of the env; ``"ALE/"`` before it is left out.
        create_env_kwargs: what else ``envpool.make`` is given: ``seed``, ``num_threads``, ``max_episode_steps`` and,
            for ``async_step_send`` and its like, ``batch_size``. It stays as it is. Envs of several players have
            ``batch_size=1`` unless told.
        **options: see :class:`MultiThreadedEnvWrapper`, which says what this env does: ``device``,
            ``categorical_action_encoding``, ``info``, ``reward_dtype``.

    Attributes:
        num_workers, env_name: as they were given.
        create_env_kwargs: a copy of what was given.

    Raises:
        ValueError: an env that EnvPool does not have, no envs, a ``batch_size`` that is more than these, or a negative
            ``num_threads``.
        TypeError: an argument of another type; ``num_envs`` or ``env_type`` among ``create_env_kwargs``; what EnvPool
            says of others comes through.

    Example:
        >>> env = MultiThreadedEnv(4, "CartPole-v1")
        >>> _ = env.set_seed(0)
        >>> td = env.rand_action(env.reset())
        >>> td, td_ = env.step_and_maybe_reset(td)
        >>> td["next", "reward"].shape, td_["observation"].shape
        (torch.Size([4, 1]), torch.Size([4, 4]))
        >>> env.close()
        >>> env = MultiThreadedEnv(4, "CartPole-v1", create_env_kwargs={"batch_size": 2})
        >>> env.async_reset_send()
        >>> td = env.async_reset_recv()
        >>> td["env_index"].shape
        torch.Size([2])
        >>> env.close()
    """

    def __init__(
        self,
        num_workers: int,
        env_name: str,
        *,
        create_env_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ):
        num_workers = count_of("num_workers", num_workers)
        if not isinstance(env_name, str):
            raise TypeError(f"env_name: got {env_name!r} of type {type(env_name).__name__}, expected a str")
        self.env_name = env_name.replace("ALE/", "")
        self.create_env_kwargs = dict(create_env_kwargs or {})
        super().__init__(_made(num_workers, self.env_name, self.create_env_kwargs), **options)


def _made(num_workers: int, env_name: str, kwargs: Mapping[str, Any]) -> Any:
    """The EnvPool of these arguments."""
    own = sorted({"num_envs", "env_type", "task_id"} & kwargs.keys())
    if own:
        raise TypeError(f"create_env_kwargs: got {own}, expected others: num_workers and env_name say that")
    if env_name not in envpool.list_all_envs():
        raise ValueError(f"env_name: got {env_name!r}, expected one of envpool.list_all_envs()")
    # a negative number of threads ends the interpreter; 0 of either is EnvPool's own choice
    for name, most in (("batch_size", num_workers), ("num_threads", None)):
        if name in kwargs:
            _require_number(name, kwargs[name], most)
    if "batch_size" not in kwargs:
        spec = envpool.make_spec(env_name, num_envs=num_workers, **kwargs)
        if spec.config.max_num_players > 1:  # such an EnvPool does a part with batches of one only
            kwargs = {**kwargs, "batch_size": 1}
    return envpool.make(env_name, env_type="gymnasium", num_envs=num_workers, **kwargs)


def _require_number(name: str, given: Any, most: int | None) -> None:
    expected = "an int that is not negative" if most is None else f"1 to {most}, the number of envs"
    told = f"create_env_kwargs: got {name}={given!r}, expected {expected}"
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(told)
    if given < 0 or (most is not None and given > most):
        raise ValueError(told)


def _on_cpu(index: Any) -> Any:
    return index.detach().cpu() if isinstance(index, torch.Tensor) else index
