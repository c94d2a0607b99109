"""What a worker takes over from the process that starts it, beside what it is to run."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from gymbridge.engine.workers.registrations import Registrations, expect_ids_again, registered
from gymbridge.engine.workers.warning_filters import WarningFilter, current_filters, set_filters

__all__ = ["Surroundings", "reseed", "without_mpi"]

_MPI_PREFIXES = ("PMI", "OMPI_", "PRTE_", "MPI_", "MPIR_", "MPICH_", "I_MPI_", "HYDI_", "HYDRA_", "MV2_", "PALS_")
"""Of Open MPI, PMIx, MPICH, Intel MPI, MVAPICH: a worker that has them takes itself for its parent's rank."""


def without_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables but those by which MPI tells a process its rank.

    Example:
        >>> without_mpi({"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3", "HOME": "/root"})
        {'HOME': '/root'}
    """
    return {name: value for name, value in environ.items() if not name.startswith(_MPI_PREFIXES)}


def reseed() -> None:
    """Gives numpy's and Python's global random states of this process fresh seeds."""
    random.seed()
    np.random.seed(list(np.frombuffer(os.urandom(32), np.uint32)))  # noqa: NPY002 - it is the global state that is meant


@dataclass(frozen=True)
class Surroundings:
    """What a worker takes over: paths, variables, warnings filters and gymnasium ids of this process, as they are now.

    To start several workers, take it once and hand it to each.

    Attributes:
        path: ``sys.path``.
        argv: ``sys.argv``.
        cwd: the working directory; None where it has been removed.
        environ: the environment variables, without MPI's.
        warnings_filters: the warnings filters.
        specs: the gymnasium ids.
    """

    path: list[str]
    argv: list[str]
    cwd: str | None
    environ: dict[str, str]
    warnings_filters: list[WarningFilter]
    specs: Mapping[str, EnvSpec] = field(repr=False)
    _packed: list[tuple[Mapping[str, EnvSpec], bytes]] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def now(cls, environ: Mapping[str, str | None] | None = None) -> Surroundings:
        """Those of this process.

        Args:
            environ: variables that the workers are to have otherwise; None as a value takes one away.

        Example:
            >>> Surroundings.now({"OMP_NUM_THREADS": "1"}).environ["OMP_NUM_THREADS"]
            '1'
        """
        try:
            cwd = os.getcwd()
        except FileNotFoundError:
            cwd = None
        changed = {**without_mpi(os.environ), **(environ or {})}
        variables = {name: value for name, value in changed.items() if value is not None}
        return cls(list(sys.path), list(getattr(sys, "argv", [])), cwd, variables, current_filters(), registered())

    def packed(self, known: Mapping[str, EnvSpec]) -> bytes:
        """Bytes for :func:`apply`, in a worker that has the gymnasium ids ``known`` already."""
        for to_whom, packed in self._packed:
            if to_whom is known:
                return packed
        plain = {
            "path": self.path,
            "argv": self.argv,
            "cwd": self.cwd,
            "environ": self.environ,
            "warnings_filters": self.warnings_filters,
            "registrations": Registrations.of(self.specs, known),
        }
        self._packed[:] = [(known, pickle.dumps(plain))]
        return self._packed[0][1]


def apply(packed: bytes) -> None:
    """Makes this process's surroundings those that were packed."""
    plain: dict[str, Any] = pickle.loads(packed)
    os.environ.clear()
    os.environ.update(plain["environ"])
    if plain["cwd"] is not None:
        with contextlib.suppress(OSError):  # removed, or no longer ours to enter
            os.chdir(plain["cwd"])
    sys.path[:] = plain["path"]
    sys.argv[:] = plain["argv"]
    importlib.invalidate_caches()
    set_filters(plain["warnings_filters"])
    expect_ids_again()
    plain["registrations"].apply()
