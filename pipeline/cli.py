"""The command, `run-pipeline` or `mlagents-learn`: from a command line to an exit status.

Importing what reads the configuration takes a sixth of the time to the first update, and importing torch half of it, so
a learner's process is started before anything else where the command plainly starts one (`pipeline/hosts/prestart.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.pipeline.common.output import speaking
from headrace.pipeline.common.process import uncollected
from headrace.pipeline.hosts.prestart import prestarted_learner


@speaking
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 done, 1 failed, 2 a mistake in the command or the configuration."""
    with prestarted_learner(sys.argv[1:] if arguments is None else arguments):
        with uncollected():
            from headrace.pipeline.actions import follow

        return follow(arguments)
