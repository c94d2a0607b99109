"""Does an env do what many of it at once need? All its faults, each with what to do about it.

:func:`find_faults` is for programs and tests, :func:`check` tells besides what could not be looked at. The command
``gymbridge check`` prints the same.

An env is looked at alone, then beside others of its kind in this process, then in worker processes, where it has to do
what it does here:

============================  ==========================================================================================
:mod:`~.gymnasium_env`        the check of a gymnasium env; :mod:`~.gymnasium_outputs` reads what it returns
:mod:`~.tensordict_env`       the check of a TensorDict env; :mod:`~.tensordict_outputs` reads what it returns
:mod:`~.instances`            what both have in common: equal seeds, other instances, the end
:mod:`~.workers`              the same two envs in this process and in two workers
:mod:`~.surroundings`         random generators and time limits while an env is called
:mod:`~.catalogue`            all faults: how grave, what to do
============================  ==========================================================================================

Torch is imported for TensorDict envs only.
"""

from gymbridge.contract.catalogue import CATALOGUE, FaultKind
from gymbridge.contract.checks import check, find_faults
from gymbridge.contract.findings import Fault, Report

__all__ = ["CATALOGUE", "Fault", "FaultKind", "Report", "check", "find_faults"]
