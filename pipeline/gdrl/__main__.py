"""`python -m headrace.pipeline.gdrl`: the command, also where another package has taken its name."""

from __future__ import annotations

import sys

from headrace.pipeline.cli import gdrl

sys.exit(gdrl())
