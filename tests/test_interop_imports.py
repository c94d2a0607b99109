"""The faces for other libraries are optional: nothing imports those libraries unasked, and a missing one is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = {"sb3": "stable_baselines3", "torchrl": "torchrl", "envpool": "envpool", "ray": "ray"}
"""Module of ``gymbridge.interop``, which is the name of its extra too -> library."""

MISSING = """
import sys

sys.modules[{library!r}] = None  # Python then raises what it raises of a library that is not installed
try:
    import gymbridge.interop.{module}
except ImportError as error:
    print(error)
"""

UNASKED = """
import sys

import gymbridge.interop
from gymbridge import ParallelEnv, SerialEnv, envs, spaces, specs, vector

vector.AsyncVectorEnv, vector.TensorDictVectorEnv
print(sorted({libraries!r} & set(sys.modules)))
"""


def output_of(program: str, env: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", LIBRARIES)
def test_a_missing_library_is_an_import_error_that_names_the_extra(module: str, subprocess_env: dict[str, str]) -> None:
    said = output_of(MISSING.format(library=LIBRARIES[module], module=module), subprocess_env)
    assert f"pip install 'gymbridge[{module}]'" in said


def test_a_pool_without_ray_is_an_import_error_that_names_the_extra(subprocess_env: dict[str, str]) -> None:
    program = MISSING.format(library="ray", module="ray").replace(
        "import gymbridge.interop.ray",
        "from gymbridge import AsyncEnvPool; AsyncEnvPool(['CartPole-v1'], backend='ray')",
    )
    said = output_of(program, subprocess_env)
    assert "backend='ray' needs Ray" in said
    assert "pip install 'gymbridge[ray]'" in said


def test_no_library_is_imported_unasked(subprocess_env: dict[str, str]) -> None:
    assert output_of(UNASKED.format(libraries={*LIBRARIES.values()}), subprocess_env) == "[]"
