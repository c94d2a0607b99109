"""A gymbridge engine as a TorchRL env, and specs both ways; needs the extra ``gymbridge[torchrl]``."""

from gymbridge.interop.torchrl_batch import GymbridgeEnv, to_torchrl
from gymbridge.interop.torchrl_specs import ChosenData, UnsupportedSpecError, spec_from_torchrl, spec_to_torchrl

__all__ = [
    "ChosenData",
    "GymbridgeEnv",
    "UnsupportedSpecError",
    "spec_from_torchrl",
    "spec_to_torchrl",
    "to_torchrl",
]
