"""A Ray cluster of this machine alone, as small as one can be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

__all__ = ["SMALL", "small_cluster"]

SMALL: dict[str, Any] = {
    "address": "local",
    "num_cpus": 2,
    "object_store_memory": 100 * 2**20,
    "include_dashboard": False,
}
"""Arguments of ``ray.init``."""


@contextmanager
def small_cluster(**others: Any) -> Iterator[None]:
    """A context with a cluster that this process is connected with; others: arguments of ``ray.init``."""
    ray.init(**SMALL, log_to_driver=False, logging_level="ERROR", **others)
    try:
        yield
    finally:
        ray.shutdown()
