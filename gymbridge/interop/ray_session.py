"""This process's connection with Ray: made where there is none, and watched while actors are waited for."""

from __future__ import annotations

import logging
import socket
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from gymbridge.interop.ray_workers import RayActor

__all__ = ["RaySession", "join_session"]

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
"""How often it is seen whether this process is still connected."""

_HEAD_SECONDS = 1.0
"""How often the head of the cluster is knocked at, and how long it has to open."""

_ANSWER_SECONDS = 2.0
"""That an actor has to answer in, where the head does not."""

_SECONDS_TO_END = 5.0
"""That the thread has to kill the last actors."""

_ENDED = "the Ray session is over: this process has called ray.shutdown()"


class RaySession:
    """A connection with Ray that pools have in common.

    Where the caller is no longer connected, Ray tells nobody: calls under way never come to their end, and another call
    would start another cluster. And where the head of the cluster is gone, Ray waits for it for a minute and then ends
    this process. So a thread looks whether there is still a connection, and whether the head can be reached; where it
    cannot, actors that do not answer are taken for dead. It kills actors too: Ray's own thread, which tells of results,
    must not wait for Ray.

    Args:
        is_ours: it was made for pools, and is ended with the last of them.

    Attributes:
        users: how many engines use it.
    """

    def __init__(self, is_ours: bool):
        self.users = 0
        self._is_ours = is_ours
        self._key = _key()
        self._actors: weakref.WeakSet[RayActor] = weakref.WeakSet()
        self._to_kill: SimpleQueue[Any] = SimpleQueue()
        self._watcher: threading.Thread | None = None
        self._over = ""
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)

    @property
    def is_current(self) -> bool:
        """Is this process still connected as it was?"""
        return not self._over and ray.is_initialized() and _key() == self._key

    def look(self) -> None:
        """Has all actors be dead where the session is over; to be called before anything is asked of Ray.

        Raises:
            BrokenPipeError: it is over.
        """
        if not self.is_current:
            self._lose_all(self._over or _ENDED)
            raise BrokenPipeError(self._over)

    def _lose_all(self, how: str) -> None:
        self._over = how
        for actor in list(self._actors):
            actor.lose(how)

    # ---------------------------------------------------------------- actors

    def new_actor(self, kind: type, options: dict[str, Any], threads: Sequence[str], arguments: tuple[Any, ...]) -> Any:
        """Has Ray start an actor; whether it does is seen by its first answer.

        Args:
            kind: its class.
            options: as Ray's ``options`` takes them.
            threads: the groups of calls that have a thread each.
            arguments: of the class.

        Raises:
            BrokenPipeError: the session is over.
        """
        self.look()
        remote = ray.remote(concurrency_groups=dict.fromkeys(threads, 1))(kind)
        return remote.options(max_restarts=0, max_task_retries=0, **options).remote(*arguments)

    def kill(self, handle: Any) -> None:
        """Has an actor's process be ended, without waiting for that; called in any thread.

        Raises:
            BrokenPipeError: the session is over.
        """
        self.look()
        self._to_kill.put(handle)

    def watch(self, actor: RayActor) -> None:
        """Has an actor be seen dead where the session ends."""
        self._actors.add(actor)
        if self._watcher is None or not self._watcher.is_alive():
            arguments = weakref.ref(self), self._to_kill
            self._watcher = threading.Thread(target=_watch, args=arguments, name="gymbridge-ray-session", daemon=True)
            self._watcher.start()

    def look_at_head(self) -> None:
        """Where the head cannot be reached, takes actors that do not answer for dead."""
        living = [actor for actor in list(self._actors) if not actor.ended.is_set()]
        if not living or _is_open(self._head):
            return
        where = ":".join(map(str, self._head))
        _logger.warning("the head of the Ray cluster cannot be reached at %s", where)
        asked = [(actor, actor.asked()) for actor in living]
        deadline = perf_counter() + _ANSWER_SECONDS
        for actor, future in asked:
            try:
                future.result(max(0.0, deadline - perf_counter()))
            except Exception:
                actor.lose(f"the Ray cluster is gone: its head cannot be reached at {where}, and the actor is silent")

    # ---------------------------------------------------------------- the end

    def leave(self, *, closed: bool) -> None:
        """One engine less uses it; with the last, a session that was made for them is ended.

        Args:
            closed: the engine was closed; where it was only let go of, this may be called in the middle of anything.
        """
        global _session
        with _lock:
            self.users -= 1
            if self.users or not closed:
                return
            self._to_kill.put(None)
            if self._watcher is not None:
                self._watcher.join(_SECONDS_TO_END)
            if _session is self:
                _session = None
            if self._is_ours and self.is_current:
                ray.shutdown()


def join_session() -> RaySession:
    """The session of this process, for one engine more: the program's own, or one with a local cluster of its own.

    Raises:
        RuntimeError: this process is a client of Ray's, and no part of a cluster.

    What ``ray.init`` raises comes through.
    """
    global _session
    with _lock:
        if _session is None or not _session.is_current:
            is_ours = not ray.is_initialized()
            if is_ours:
                ray.init()
            elif ray.util.client.ray.is_connected():
                raise RuntimeError(
                    'backend="ray": this process is connected by ray.init("ray://..."), expected a process that is '
                    "part of the cluster: run the program on one of its machines"
                )
            _session = RaySession(is_ours)
        _session.users += 1
        return _session


_session: RaySession | None = None
_lock = threading.RLock()


def _key() -> tuple[str, str]:
    """What tells one connection of this process from another; of none, empty."""
    try:
        context = ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()
    except Exception:  # it has just been ended, in another thread
        return "", ""


def _is_open(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _HEAD_SECONDS).close()
    except OSError:
        return False
    return True


def _watch(session_of: weakref.ref[RaySession], to_kill: SimpleQueue[Any]) -> None:
    """In a thread: kills actors and looks at a session, until it is given None or nobody has the session any more."""
    next_look = perf_counter() + _HEAD_SECONDS
    while True:
        with suppress(Empty):
            handle = to_kill.get(timeout=_LOOK_SECONDS)
            if handle is None:
                return
            with suppress(Exception):  # what is to be said of it is said by the call that waits for its end
                ray.kill(handle, no_restart=True)
            del handle
        session = session_of()
        if session is None:
            return
        if not session.is_current:
            session._lose_all(session._over or _ENDED)
            return
        if perf_counter() >= next_look:
            session.look_at_head()
            next_look = perf_counter() + _HEAD_SECONDS
        del session
