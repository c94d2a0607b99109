"""Show versions, cores, shared memory, devices, and which extras are there."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymbridge
from gymbridge.benchmarking.machine import cpu_limit, installed, processor
from gymbridge.engine.parallel import usable_cores
from gymbridge.engine.workers import default_method

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXTRAS", "add_arguments", "run"]

PACKAGES = ("gymnasium", "numpy", "torch", "tensordict", "cloudpickle")
PEERS = ("torchrl", "stable-baselines3", "envpool", "ray")

EXTRAS = {
    "cli": ("rich", "matplotlib"),
    "examples": ("matplotlib",),
    "sb3": ("stable-baselines3",),
    "torchrl": ("torchrl",),
    "envpool": ("envpool",),
    "ray": ("ray",),
}
"""Extra that users install -> the packages that it brings."""

_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""One of these is there where a Linux program can reach a GPU."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what it takes."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, console: Console | None) -> int:
    """Shows it, also where rich is missing and there is no console: what is missing is what it tells."""
    found = findings()
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    rows = _rows(found)
    width = max(len(what) for what, _ in rows)
    if console is None:
        print(*(f"{what:{width}}  {value}" for what, value in rows), sep="\n")
        return 0
    from rich.text import Text

    for what, value in rows:
        console.print(Text.assemble((f"{what:{width}}", "bold"), f"  {value}"), soft_wrap=True, highlight=False)
    return 0


def findings() -> dict[str, Any]:
    """All of it, as JSON has it; torch is imported only where it may find a GPU."""
    return {
        "gymbridge": gymbridge.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}",
        "packages": {name: installed(name) for name in PACKAGES},
        "peers": {name: installed(name) for name in PEERS},
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cores()),
        "cpu_limit": cpu_limit(),
        "start_methods": {"default": default_method(), "others": multiprocessing.get_all_start_methods()},
        "shared_memory": _shared_memory(),
        "cuda_devices": cuda_devices(),
        "extras": {
            extra: [name for name in packages if installed(name) == "not installed"]
            for extra, packages in EXTRAS.items()
        },
    }


def cuda_devices() -> list[str]:
    """The names of torch's CUDA (or ROCm) devices."""
    has_no_gpu = sys.platform == "linux" and not any(map(os.path.exists, _GPU_FILES))
    if find_spec("torch") is None or installed("torch").endswith("+cpu") or has_no_gpu:
        return []
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _shared_memory() -> dict[str, int] | None:
    """Bytes of ``/dev/shm``; None where there is none."""
    if not Path("/dev/shm").is_dir():
        return None
    size, _, free = shutil.disk_usage("/dev/shm")
    return {"size": size, "free": free}


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    memory = found["shared_memory"]
    limit = "" if found["cpu_limit"] is None else f", control groups allow {found['cpu_limit']:g}"
    methods = found["start_methods"]
    return [
        *((name, found[name]) for name in ("gymbridge", "python")),
        *found["packages"].items(),
        *found["peers"].items(),
        ("platform", found["platform"]),
        ("processor", found["processor"]),
        ("cores", f"{found['usable_cores']} usable of {found['cores']}{limit}"),
        ("workers are started by", f"{methods['default']} (default), {', '.join(methods['others'])}"),
        ("/dev/shm", "none" if memory is None else f"{_size(memory['free'])} free of {_size(memory['size'])}"),
        ("CUDA devices", ", ".join(found["cuda_devices"]) or "none"),
        *(
            (
                f"extra {extra}",
                f"{', '.join(missing)} missing: pip install 'gymbridge[{extra}]'" if missing else "available",
            )
            for extra, missing in found["extras"].items()
        ),
    ]


def _size(num_bytes: int) -> str:
    """As people read it.

    Example:
        >>> _size(3 * 2**29)
        '1.5 GiB'
    """
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:.1f} GiB"
    return f"{num_bytes / 2**20:.1f} MiB"
