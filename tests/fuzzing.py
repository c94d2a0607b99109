"""How many examples random tests draw, and tests that draw fewer where each example starts worker processes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

__all__ = ["FACTOR", "PHASES", "examples", "given_over_engines", "quick"]

FACTOR = float(os.environ.get("GYMBRIDGE_EXAMPLES", "1"))
"""So many times the usual number of examples."""

PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)  # to explain a failure takes minutes


def examples(number: int) -> int:
    """The number of examples to draw where ``number`` is the usual one: ``GYMBRIDGE_EXAMPLES`` times as many.

    Example:
        >>> examples(100) == max(2, round(100 * FACTOR))
        True
    """
    return max(2, round(number * FACTOR))


def quick(number: int) -> settings:
    """Settings of a test that draws programs or envs, ``number`` of them unless it is told otherwise."""
    return settings(
        deadline=None, max_examples=examples(number), phases=PHASES, suppress_health_check=list(HealthCheck)
    )


def given_over_engines(**strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """hypothesis' ``given`` for a test with engines among its fixtures: 4 examples, 2 where one has workers."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            has_workers = any(not getattr(value, "in_process", True) for value in fixtures.values())

            def example(**drawn: Any) -> None:
                test(**fixtures, **drawn)

            example.__name__ = test.__name__  # a key of the examples that hypothesis keeps
            quick(2 if has_workers else 4)(given(**strategies)(example))()

        parameters = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter for parameter in parameters if parameter.name not in strategies]
        )
        return run

    return decorate
