"""``python -m gymbridge`` is ``gymbridge``."""

from __future__ import annotations

import sys

from gymbridge.cli import main

if __name__ == "__main__":
    sys.exit(main())
