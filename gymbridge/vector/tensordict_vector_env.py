"""Any batched TensorDict env as a ``gymnasium.vector.VectorEnv``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.failures import why_not_stepped
from gymbridge.engine.gym_host import GymEnvDescription
from gymbridge.envs.base import EnvBase
from gymbridge.envs.engine_env import EngineEnv
from gymbridge.envs.inputs import DeviceLike, env_device
from gymbridge.envs.tensordicts import entry, tensordict_of
from gymbridge.envs.transitions import keep_asleep
from gymbridge.envs.vector_env import GymVectorEnv
from gymbridge.specs._bridge import array_of
from gymbridge.vector.autoreset import Autoreset
from gymbridge.vector.env_outputs import OutputCheck
from gymbridge.vector.reset_arguments import require_observed, row_seeds, split_reset_mask
from gymbridge.vector.tensordict_form import TensorDictForm, require_output

__all__ = ["TensorDictVectorEnv"]

Mask = npt.NDArray[np.bool_]
_Result = TypeVar("_Result")

# plain numbers: numpy takes six times as long over members of an enum
_RESET, _RUNNING, _ENDED, _FAILED, _NEW = map(
    int, (Op.RESET, RowState.RUNNING, RowState.ENDED, RowState.FAILED, RowState.NEW)
)


class _Shown(NamedTuple):
    """What a step shows, before it is put in the form that the user asked for."""

    latest: TensorDictBase
    """Each env's latest observation and infos."""
    outcome: TensorDictBase
    """Reward and flags."""
    final: TensorDictBase | None = None
    """Where envs were reset in the step that ended their episode: the observations and infos before that."""


class TensorDictVectorEnv(OneCallAtATime, VectorEnv[Any, Any, Any]):
    """A batched TensorDict env as a ``gymnasium.vector.VectorEnv``.

    Over a :class:`~gymbridge.SerialEnv` it gives what :class:`~gymbridge.vector.SyncVectorEnv` does, one engine round a
    step, but for rewards, which have the precision of the env's ``reward_dtype``, and infos, of which the env keeps
    those that it was told to. It may run gymnasium envs or TensorDict envs (:class:`~gymbridge.envs.EnvBase`). Any
    other batched env, one on a GPU for example, is stepped whole where it can be:

    - ``NEXT_STEP`` steps the envs in an episode (``"_step"``) and resets the others (``"_reset"``), in two calls of the
      env where some do this and some that. An env with ``partial_step=False`` steps all, those whose episode has ended
      included, and then has these reset.
    - ``SAME_STEP`` is ``step_and_maybe_reset``.
    - ``DISABLED`` refuses to step while an episode's end waits for ``reset(options={"reset_mask": mask})`` or
      ``reset()``; it is the only mode for an env with ``partial_reset=False``, which is reset whole.

    Spaces are those of the specs (:func:`gymbridge.spaces.spec_to_space`) of one env: nested groups are ``Dict``
    spaces, a one-hot spec is the ``Discrete`` that it encodes, what stands under ``"_user"`` has its own name, and a
    lone action key is left out. A ``Composite`` at ``"info"`` is no observation but the infos. ``final_obs`` and
    ``final_info`` are as gymnasium has them.

    State that TensorDict envs have in the TensorDict, the keys of their ``state_spec`` and what else they write, goes
    from each step to the next. A reset in a step and one by mask are given their env's row of it, as natively; a
    ``reset()`` of all begins with nothing. No policy writes here: a state that an env reads is one that it gives. All
    runs under ``torch.no_grad()``.

    Args:
        env: an env of batch size ``[N]``; it is closed with the vector env.
        autoreset_mode: an ``AutoresetMode`` or its value, see :mod:`gymbridge.vector.autoreset`.
        output: ``"numpy"``, which gymnasium's own vector wrappers want: observations in their spaces' dtypes, rewards
            float64. ``"torch"``: tensors, rewards in the env's dtype. Infos are numpy either way.
        device: where tensors are to be, with ``output="torch"``; None leaves each where the env has it.
        copy: hand out results that are the caller's own. If not, they may share the memory of what the env returned:
            none is copied where it already is on the device, an env that writes into its tensors changes them, and what
            the caller writes into them may be state that an env reads.

    Attributes:
        env: the env.

    Raises:
        TypeError: no ``EnvBase``, or a dtype that the device lacks.
        ValueError: an env without a batch or with more than one batch dim, with other rewards and flags than one of
            each an env, or of envs that differ in their specs; a mode that the env cannot have; an option with a value
            that it does not have.
        UnsupportedSpaceError: a spec without a space.

    Example:
        >>> from gymbridge import SerialEnv
        >>> envs = TensorDictVectorEnv(SerialEnv(3, "CartPole-v1"), autoreset_mode="SameStep")
        >>> observations, infos = envs.reset(seed=42)
        >>> observations, rewards, terminations, truncations, infos = envs.step([0, 1, 1])
        >>> observations.shape, rewards
        ((3, 4), array([1., 1., 1.]))
        >>> envs.close()
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        output: Literal["numpy", "torch"] = "numpy",
        device: DeviceLike | None = None,
        copy: bool = True,
    ):
        self.closed = True  # nothing to close yet: some versions of gymnasium close in __del__
        self._autoreset = Autoreset(autoreset_mode)
        _require_env(env)
        _require_mode(env, self.autoreset_mode)
        require_output(output, device)
        self.env = env
        self.num_envs = env.batch_size[0]
        self.copy = copy
        self._engine_env = env if isinstance(env, EngineEnv) else None
        self._as_torch = output == "torch"
        self._device = None if device is None else env_device(device)
        described = None if self._engine_env is None else self._engine_env.engine.descriptions[0]
        gym_env = described if isinstance(described, GymEnvDescription) else None
        self._keeps_root = gym_env is None  # gymnasium envs have their state in themselves
        # what gymnasium envs give is the caller's own already, unless their batch was told not to copy
        self._env_gives_own = gym_env is not None and getattr(env, "_copy", True)

        self._read_specs(gym_env)
        # an engine has looked at what its envs give already
        self._output_check = OutputCheck(env) if self._engine_env is None else None
        self._states = np.full(self.num_envs, _NEW, np.uint8)
        self._root: TensorDictBase = self._nothing()
        self._all = np.ones(self.num_envs, np.bool_)
        self.closed = False

    def _read_specs(self, gym_env: GymEnvDescription | None) -> None:
        """Sets what follows from what the env says of itself."""
        env = self.env
        self._form = TensorDictForm(env, gym_env, as_torch=self._as_torch, device=self._device)
        self.single_observation_space = self._form.single_observation_space
        self.single_action_space = self._form.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**self._told("metadata", {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = self._told("render_mode", None)

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """What happens at the end of an episode; may be set, for the steps that follow."""
        return self._autoreset.mode

    @autoreset_mode.setter
    def autoreset_mode(self, mode: AutoresetMode | str) -> None:
        autoreset = Autoreset(mode)
        _require_mode(self.env, autoreset.mode)
        self._autoreset = autoreset
        self.metadata["autoreset_mode"] = autoreset.mode

    @property
    def _copies(self) -> bool:
        """Whether what the env gives is to be copied; ``copy`` may be set, for the calls that follow."""
        return self.copy and not self._env_gives_own

    def _told(self, name: str, otherwise: Any) -> Any:
        """What the first env of an engine, or another env, says of itself under a name."""
        try:
            return getattr(self.env, name) if self._engine_env is None else self._engine_env.engine.attribute(0, name)
        except AttributeError:
            return otherwise

    # ---------------------------------------------------------------- reset and step

    @exclusive
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all envs, or those that ``options["reset_mask"]`` names.

        Args:
            seed: one int, for ``env.set_seed(seed)``, or None. Envs run by an engine, those of a ``SerialEnv`` for
                example, take a list with a seed or None for each env too, and those that are not reset get none.
            options: other entries than ``"reset_mask"``, a bool array ``[num_envs]``, go to ``env.reset(options=…)``.

        Returns:
            Observations of all envs, those not reset having their latest, and the infos of the envs that were reset.

        Raises:
            ClosedEnvironmentError: the vector env is closed.
            ResetNeeded: the mask leaves out an env that has never been reset.
            gymnasium.error.Error: a negative seed.
            EnvOutputError: a batched env that no engine runs gave what its specs do not say.
            ValueError, TypeError: what is no seed, a wrong number of them, a mask of another type, shape or dtype or
                without a True, or one that names some envs where the env has ``partial_reset=False``.
        """
        self._require_open("reset")
        mask, options = split_reset_mask(options, self.num_envs)
        if mask is not None:
            require_observed(self._row_states(), mask)
            if not (self.env.partial_reset or mask.all()):
                raise ValueError(
                    f"options['reset_mask']: {type(self.env).__name__} has partial_reset=False and is reset whole "
                    f"only; got {mask}"
                )
        rows = self._all if mask is None else mask
        self._seed(seed, rows)
        given = None if mask is None else self._inputs().set("_reset", torch.from_numpy(mask.copy()))
        kwargs = {"options": options} if options else {}
        root = self._touching(rows, lambda: self._checked_root(self.env.reset(given, **kwargs)))
        self._take_root(root)
        self._states[rows] = _RUNNING
        return self._observation(root), self._form.infos(root, rows)

    @exclusive
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the envs; those whose episode ended are treated as the autoreset mode says.

        Args:
            actions: a batch of ``action_space``: numpy, torch on any device, a list, or a dict or tuple of these.

        Returns:
            observations, rewards ``[num_envs]``, terminations and truncations ``[num_envs]`` bool, infos.

        Raises:
            ClosedEnvironmentError: the vector env is closed.
            ResetNeeded: an env has to be reset before it can be stepped.
            EnvOutputError: a batched env that no engine runs gave what its specs do not say.
            ValueError, TypeError, KeyError, SpecError: actions that do not fit the action space, or a state that no
                env gave; no env has been stepped then.

        What the env raises comes through. Where an engine runs the envs, ``env.last_partial()`` then has what the
        others gave; else every env has to be reset.
        """
        self._require_open("step")
        states = self._row_states()
        if _NEW in states:
            new = [row for row, state in enumerate(states) if state == _NEW]
            raise ResetNeeded(f"{why_not_stepped(states, new)}: reset them before they are stepped")
        ops = self._autoreset.ops(states)
        resets = np.frombuffer(ops, np.uint8) == _RESET if _RESET in ops else None
        td = self._inputs()
        self._form.write_actions(td, actions, ignored=resets)
        shown = self._touching(self._all, lambda: self._run(td, resets))
        ended = array_of(entry(shown.outcome, "done")).reshape(self.num_envs)
        infos: dict[str, Any] = {}
        if shown.final is not None:
            parts = self._form.parts(shown.final, copy=self._copies)
            infos["final_obs"], infos["_final_obs"] = self._form.final_observations(parts, ended), ended.copy()
            infos["final_info"], infos["_final_info"] = self._form.infos(shown.final, ended), ended.copy()
        infos.update(self._form.infos(shown.latest, self._all))
        self._states.fill(_RUNNING)
        if not self._autoreset.is_same_step:
            self._states[ended] = _ENDED
        return (self._observation(shown.latest), *self._form.outcome(shown.outcome, copy=self._copies), infos)

    def _run(self, td: TensorDictBase, resets: Mask | None) -> _Shown:
        """Does with each env what its autoreset mode says; ``td`` has the actions."""
        if self._autoreset.is_same_step:
            td, root = self.env.step_and_maybe_reset(td)
            following = self._checked_next(entry(td, "next"))
            if not array_of(entry(following, "done")).any():  # what the env itself gave, of which the root has a copy
                self._take_root(root)
                return _Shown(following, following)
            self._take_root(self._checked_root(root))
            return _Shown(root, following, final=following)
        if resets is None:
            following = self._checked_next(entry(self.env.step(td), "next"))
        elif self._engine_env is not None:
            following = self._engine_env.step_or_reset(td, torch.from_numpy(resets))
        else:
            return self._step_then_reset(td, torch.from_numpy(resets))
        if self._keeps_root:
            self._root = self.env.step_mdp(td.set("next", following))
        return _Shown(following, following)

    def _step_then_reset(self, td: TensorDictBase, resets: torch.Tensor) -> _Shown:
        """Steps the envs that are not to be reset, or all where the env cannot do a part, then resets."""
        if resets.all():
            root = self._checked_root(self.env.reset(self._root))
            self._take_root(root)
            return _Shown(root, self._form.no_outcome())
        if self.env.partial_step:
            td.set("_step", ~resets)
        td = self.env.step(td)
        self._checked_next(td["next"])
        root = self.env.step_mdp(td)
        keep_asleep(root, self._root, ~resets)  # a step after the end leaves no trace
        root.set("_reset", resets)
        root = self._checked_root(self.env.reset(root))
        self._take_root(root)
        outcome = {}
        for name in ("reward", "done", "terminated", "truncated"):
            value = td["next", name]
            outcome[name] = value.masked_fill(resets.to(value.device).reshape(-1, *[1] * (value.ndim - 1)), 0)
        return _Shown(root, TensorDict(outcome, self.env.batch_size))

    def _checked_root(self, root: TensorDictBase) -> TensorDictBase:
        if self._output_check is not None:
            self._output_check.first(root)
        return root

    def _checked_next(self, following: TensorDictBase) -> TensorDictBase:
        if self._output_check is not None:
            self._output_check.following(following)
        return following

    # ---------------------------------------------------------------- what the env is given, and where its rows stand

    def _nothing(self) -> TensorDict:
        return tensordict_of({}, self.env.batch_size, self.env.device)

    def _inputs(self) -> TensorDictBase:
        """What the next call of the env is given, the caller's to change: the root, where the env needs one."""
        return self._root.copy() if self._keeps_root else self._nothing()

    def _take_root(self, root: TensorDictBase) -> None:
        if self._keeps_root:
            self._root = root

    def _take_partial(self, partial: TensorDictBase) -> None:
        """Goes on from what the envs gave in a call in which another env raised."""
        root = self.env.step_mdp(partial) if "next" in partial.keys() else partial
        shown = {*self.env.full_observation_spec.keys(True, True), *self.env.full_done_spec.keys(True, True)}
        # the engine knows what each env shows, also where one was reset in the call
        self._root = root.select(*(key for key in root.keys(True, True) if key not in shown | {"_failed"}))

    def _row_states(self) -> bytes:
        """Where each env stands; an engine knows, also of what was called past this vector env."""
        return self._states.tobytes() if self._engine_env is None else self._engine_env.engine.block.state.tobytes()

    def _touching(self, rows: Mask, call: Callable[[], _Result]) -> _Result:
        """Calls the env; if it raises, the rows are to be reset, since what they did does not reach the caller."""
        if not self._keeps_root:
            return call()
        before = self._last_partial()
        try:
            with torch.no_grad():  # a root that is carried along would drag the graph of all steps behind it
                return call()
        except BaseException:
            self._states[rows] = _FAILED
            partial = self._last_partial()
            if partial is not None and partial is not before:
                self._take_partial(partial)
            raise

    def _last_partial(self) -> TensorDictBase | None:
        return None if self._engine_env is None else self._engine_env.last_partial()

    def _seed(self, seed: Any, rows: Mask) -> None:
        """Gives seeds to the envs that are to be reset; each keeps what it has where there is none for it."""
        if seed is None:
            return
        seeds = row_seeds(seed, self.num_envs)
        is_one = isinstance(seed, (int, np.integer))
        if is_one and (self._engine_env is None or rows.all()):
            self.env.set_seed(int(seed))
        elif self._engine_env is None:
            raise TypeError(f"seed: got {seed!r}, expected an int: {type(self.env).__name__} takes one for all envs")
        else:
            for row, own in enumerate(seeds):
                if own is not None and rows[row]:
                    self._engine_env.engine.seed(row, own, False)

    def _require_open(self, call: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{call}: the vector env is closed")

    # ---------------------------------------------------------------- what comes out

    def _observation(self, td: TensorDictBase) -> Any:
        return self._form.observation(td, copy=self._copies)

    # ---------------------------------------------------------------- the envs themselves

    @property  # type: ignore[misc]
    def np_random(self) -> Any:
        """The random generator of each env of an engine; of another env what it has under this name."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """The seed of each random generator of an engine's envs; of another env what it has under this name."""
        return self.get_attr("np_random_seed")

    @exclusive
    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Attribute ``name``, called with the arguments where it is callable.

        Returns:
            A tuple with what each env gave, where an engine runs them; else what the batched env itself gave.
        """
        self._require_open("call")
        if self._engine_env is not None:
            engine = self._engine_env.engine
            return tuple(engine.call(row, name, args, kwargs) for row in range(self.num_envs))
        value = getattr(self.env, name)
        return value(*args, **kwargs) if callable(value) else value

    def get_attr(self, name: str) -> Any:
        """Attribute ``name`` of each env of an engine, as a tuple; else that of the batched env itself."""
        return self.call(name)

    @exclusive
    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each env of an engine, to its own of a list or tuple; else of the batched env itself.

        Raises:
            ValueError: a list or tuple of another length than there are envs of an engine.
        """
        self._require_open("set_attr")
        if self._engine_env is None:
            setattr(self.env, name, values)
            return
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"values: got {len(each)} values, expected {self.num_envs}, one for each env")
        for row, value in enumerate(each):
            self._engine_env.engine.set_attribute(row, name, value)

    def render(self) -> Any:
        """What each env of an engine renders, as a tuple; else what the batched env's own ``render`` gives."""
        return self.call("render")

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What the env's workers have done, see :meth:`gymbridge.SerialEnv.stats`.

        Raises:
            AttributeError: an env of your own, which no engine runs.
        """
        try:
            stats: Callable[..., dict[str, Any]] = self.env.stats  # type: ignore[attr-defined]
        except AttributeError:
            raise AttributeError(
                f"stats: no engine runs {type(self.env).__name__}, so that nothing is counted; a SerialEnv or a "
                f"ParallelEnv of such envs counts"
            ) from None
        return stats(reset=reset)

    @exclusive
    def close(self, **kwargs: Any) -> None:
        """Closes the env, once; see :meth:`close_extras`."""
        super().close(**kwargs)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the env."""
        self.closed = True  # before the env is: one that raises is not to be closed twice
        self.env.close(raise_if_closed=False)


def _require_env(env: Any) -> None:
    """Refuses what cannot be such a vector env."""
    if not isinstance(env, EnvBase):
        hint = "; of a vector env, from_vector_env makes a TensorDict env" if isinstance(env, VectorEnv) else ""
        raise TypeError(f"env: got {env!r} of type {type(env).__name__}, expected a batched EnvBase{hint}")
    name = type(env).__name__
    if len(env.batch_size) != 1 or not env.batch_size[0]:
        hint = "" if env.batch_size else ", which SerialEnv(N, maker) and ParallelEnv(N, maker) have"
        raise ValueError(f"env: got {name} of batch size {[*env.batch_size]}, expected one batch dim, [N]{hint}")
    if isinstance(env, GymVectorEnv) and env.autoreset_mode is AutoresetMode.NEXT_STEP and not env.partial_reset:
        raise ValueError(
            f"env: got from_vector_env(...) of {env.env}, expected that vector env itself: its TensorDict env has dead "
            f"steps, which this class knows nothing of"
        )


def _require_mode(env: EnvBase, mode: AutoresetMode) -> None:
    """Refuses a mode that the env cannot have."""
    name = type(env).__name__
    if mode is not AutoresetMode.DISABLED and not env.partial_reset:
        raise ValueError(
            f"autoreset_mode: got {mode.value!r}, expected {AutoresetMode.DISABLED.value!r}: {name} has "
            f"partial_reset=False, so the envs whose episode ended cannot be reset while the others go on"
        )
    if mode is AutoresetMode.NEXT_STEP and isinstance(env, GymVectorEnv):
        others = [other.value for other in AutoresetMode if other is not mode]
        raise ValueError(
            f"autoreset_mode: got {mode.value!r}, expected {' or '.join(map(repr, others))}: {name} steps all its envs "
            f"or none, and none whose episode has ended"
        )
