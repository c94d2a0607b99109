"""An engine as a TorchRL env, TorchRL envs in engines, specs both ways; needs the extra ``gymbridge[torchrl]``."""

from gymbridge.interop.torchrl_batch import GymbridgeEnv, to_torchrl
from gymbridge.interop.torchrl_env import TorchRLEnv, TorchRLEnvMaker, from_torchrl
from gymbridge.interop.torchrl_specs import ChosenData, UnsupportedSpecError, spec_from_torchrl, spec_to_torchrl

__all__ = [
    "ChosenData",
    "GymbridgeEnv",
    "TorchRLEnv",
    "TorchRLEnvMaker",
    "UnsupportedSpecError",
    "from_torchrl",
    "spec_from_torchrl",
    "spec_to_torchrl",
    "to_torchrl",
]
