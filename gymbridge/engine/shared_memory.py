"""Memory that this process and its workers share: where it comes from and how it is handed over, chosen here alone.

- Anonymous memory (``memfd_create``), handed over by descriptor: no name, so nothing is left behind, whatever dies.
- A memory-mapped file, on request, handed over by descriptor too: readable by its owner alone, and unlinked at once
  unless a path was asked for.
- Memory with a name (``multiprocessing.shared_memory``) only where the platform has no ``memfd_create``.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gymbridge.engine.workers.channel import Channel
from gymbridge.engine.workers.descriptors import anonymous_file, close_all

__all__ = ["MemoryKind", "SharedBytes"]

MemoryKind = Literal["anonymous", "file", "named"]


class SharedBytes:
    """Bytes, zero at first, that several processes see.

    The memory lives until every array over it is gone, in every process; ``close`` gives back what hands it over.

    Attributes:
        array: ``[nbytes]`` uint8, aligned to a page.

    Example:
        >>> import socket
        >>> ours, theirs = (Channel(end.detach()) for end in socket.socketpair())  # of two processes, as a rule
        >>> memory = SharedBytes.allocate(3)
        >>> memory.send(ours)
        >>> received = SharedBytes.receive(theirs)
        >>> received.array[1] = 7
        >>> memory.array
        array([0, 7, 0], dtype=uint8)
        >>> for each in (memory, received, ours, theirs):
        ...     each.close()
    """

    def __init__(self, array: npt.NDArray[np.uint8], descriptor: int, named: SharedMemory | None = None):
        self.array = array
        self._descriptor = descriptor
        self._named = named
        self._pid = os.getpid()

    @classmethod
    def allocate(cls, nbytes: int, kind: MemoryKind | None = None, path: str | os.PathLike[str] | None = None) -> Any:
        """New memory.

        Args:
            nbytes: how much.
            kind: ``"anonymous"``, ``"file"`` or ``"named"``; None for the first, where the platform has it, else the last.
            path: for ``"file"``: a file that is made there and stays; without one, a file of the temporary directory.

        Raises:
            FileExistsError: there is a file at ``path``.
            OSError: not so much memory, or space on the disk.
        """
        raise NotImplementedError
