"""A gymbridge engine as a TorchRL env, and specs both ways; needs the extra ``gymbridge[torchrl]``."""

from gymbridge.interop.torchrl_specs import UnsupportedSpecError, spec_from_torchrl, spec_to_torchrl

__all__ = ["UnsupportedSpecError", "spec_from_torchrl", "spec_to_torchrl"]
