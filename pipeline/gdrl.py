"""`python -m headrace.pipeline.gdrl`: runs `gdrl` even if another package has a command with that name."""

from __future__ import annotations

import sys

from headrace.pipeline.cli import gdrl

sys.exit(gdrl())
