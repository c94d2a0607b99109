"""The check of a gymnasium env needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys

from gymbridge.contract import check

report = check("CartPole-v1", num_steps=30)
print(report.faults, report.not_checked, "torch" in sys.modules)
"""


def test_a_gymnasium_env_is_checked_without_torch(subprocess_env: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] [] False\n"


def test_a_fault_is_told_with_key_got_and_expected() -> None:
    import gymnasium as gym
    import numpy as np

    from gymbridge.contract import find_faults

    class Doubled(gym.ObservationWrapper):  # type: ignore[type-arg]
        def observation(self, observation: np.ndarray) -> np.ndarray:
            return 2 * observation.astype(np.float64)

    (fault,) = find_faults(lambda: Doubled(gym.make("CartPole-v1")), num_steps=30)
    assert (fault.code, fault.severity, fault.key) == ("observation-dtype", "error", "observation")
    assert (fault.got, fault.expected) == ("dtype float64", "float32")
    assert fault.count > 30


@pytest.mark.parametrize("env", [3, object()])
def test_what_makes_no_env_is_refused(env: object) -> None:
    from gymbridge.contract import find_faults

    with pytest.raises(TypeError, match="expected an env, a registered id or a callable"):
        find_faults(env)
