"""The faces for other libraries are optional: nothing imports those libraries unasked, and a missing one is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gymbridge import AsyncEnvPool

LIBRARIES = {"sb3": "stable_baselines3", "torchrl": "torchrl", "envpool": "envpool", "ray": "ray"}
"""Module of ``gymbridge.interop``, which is the name of its extra too -> library."""

MISSING = """
import sys
from importlib import import_module

sys.modules.update(dict.fromkeys({libraries!r}))  # Python then raises what it raises of what is not installed
for module in {modules!r}:
    try:
        import_module("gymbridge.interop." + module)
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


def test_a_missing_library_is_an_import_error_that_names_the_extra(subprocess_env: dict[str, str]) -> None:
    said = output_of(MISSING.format(libraries=[*LIBRARIES.values()], modules=[*LIBRARIES]), subprocess_env).splitlines()
    for module, line in zip(LIBRARIES, said, strict=True):
        assert f"pip install 'gymbridge[{module}]'" in line


def test_a_pool_without_ray_is_an_import_error_that_names_the_extra() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "ray", None)
        patched.delitem(sys.modules, "gymbridge.interop.ray", raising=False)
        with pytest.raises(ImportError, match="backend='ray' needs Ray") as raised:
            AsyncEnvPool(["CartPole-v1"], backend="ray")
    assert "pip install 'gymbridge[ray]'" in str(raised.value)


def test_no_library_is_imported_unasked(subprocess_env: dict[str, str]) -> None:
    assert output_of(UNASKED.format(libraries={*LIBRARIES.values()}), subprocess_env) == "[]"
