"""Running one of our modules in a new interpreter, without the user's script."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import spawn

__all__ = ["interrupts_blocked", "new_interpreter", "own_signals"]


def new_interpreter(
    function: str,
    descriptors: Sequence[int],
    environ: Mapping[str, str],
    arguments: Sequence[str] = (),
    errors: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a new interpreter that calls one function and exits with what it returns.

    It has this process's interpreter flags and ``sys.path``, the given descriptors and no others, and an empty standard
    input. SIGINT is blocked until the function unblocks it, so that a Ctrl-C during the start does not end it.

    Args:
        function: ``"module:name"``; it is called with a list: the descriptors' numbers, as strings, and ``arguments``.
        descriptors: what it inherits.
        environ: its environment variables.
        arguments: what the function is told beside.
        errors: what it has as its standard error; unless given, that of this process.
    """
    module, _, name = function.partition(":")
    # the path comes first of all: what the interpreter puts there itself, the working directory, is never looked into
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from {module} import {name}; "
        f"from gymbridge.engine.workers.worker_main import leave; leave({name}(sys.argv[1:]))"
    )
    executable = spawn.get_executable()
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as `multiprocessing` does
    with interrupts_blocked():
        return subprocess.Popen(
            [executable, *flags, "-c", code, *map(str, descriptors), *arguments],
            stdin=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=descriptors,
            env=environ,
        )


def own_signals() -> None:
    """In a new interpreter: ignores SIGINT, and nothing else that the process that started it may ignore.

    An ignored SIGCHLD would lose the exit codes of children, an ignored SIGTERM would make ``terminate`` do nothing.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Blocks SIGINT in this thread, and in the processes that it starts meanwhile until they unblock it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
