"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# No test is timed. GYMBRIDGE_FUZZ=1 draws ten times as many examples.
settings.register_profile("gymbridge", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=10 * settings.default.max_examples)
settings.load_profile("fuzz" if os.environ.get("GYMBRIDGE_FUZZ") else "gymbridge")
