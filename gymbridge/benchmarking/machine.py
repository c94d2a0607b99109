"""What figures depend on: the machine, and the versions of what runs on it."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import gymbridge
from gymbridge.engine.parallel import usable_cores

__all__ = ["PACKAGES", "circumstances", "cpu_limit", "cpus", "installed", "kernel", "processor"]

PACKAGES = ("gymnasium", "numpy", "torch", "tensordict", "torchrl", "stable-baselines3")
"""Those whose versions matter to most figures."""


def installed(package: str) -> str:
    """The version of a package.

    Example:
        >>> installed("no-such-package")
        'not installed'
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """What the processor calls itself."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def kernel() -> str:
    """The kernel and its version, without what who built it calls it.

    Example:
        >>> kernel().partition(" ")[0] == platform.system()
        True
    """
    return f"{platform.system()} {platform.release().partition('-')[0]}".strip()


def cpu_limit(root: Path = Path("/")) -> float | None:
    """How many cores' worth of time the control groups of this process allow (Linux); None for no limit.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    try:
        entries = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    limits = []
    for _, controllers, group in entries:
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        inner = mount / group.lstrip("/")
        for folder in (inner, *inner.parents):  # a limit of a group holds for those inside
            limits.append(_quota(folder))
            if folder == mount:
                break
    return min((limit for limit in limits if limit is not None), default=None)


def _quota(folder: Path) -> float | None:
    """Of one control group, of the second or the first version."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else float(quota) / float(period)


def cpus() -> int:
    """How many processes can compute at a time: the usable cores, or fewer where control groups limit their time."""
    limit = cpu_limit()
    cores = len(usable_cores())
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def circumstances(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """The date, the machine, and the versions of Python, gymbridge and these packages."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": f"{processor()}, {len(usable_cores())} usable cores, {kernel()}, {platform.machine()}",
        "python": platform.python_version(),
        "gymbridge": gymbridge.__version__,
        **{package: installed(package) for package in packages},
    }
