"""The commands `run-pipeline` and `mlagents-learn`: from a command line to an exit status.

Importing the configuration reader takes a sixth of the time to the first update, and importing torch takes half. So a
command that clearly needs a learner starts its process before anything else (`pipeline/hosts/prestart.py`). Slow
imports happen inside the functions below, where Ctrl-C ends them cleanly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.ending import end_in_time, ended_at_once


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 done, 1 failed, 2 a mistake in the command or the configuration.

    Args:
        arguments: the command's arguments; None to take this process's arguments and exit with the status.
    """
    with ended_at_once(for_good=arguments is None):
        from headrace.pipeline.common.output import speaking

        status = speaking(_follow)(arguments)
        if arguments is None:
            end_in_time(status)
        return status


def gdrl() -> int:
    """Run the command `gdrl` and return its exit status."""
    with ended_at_once(for_good=True):
        from headrace.pipeline.gdrl.command import main

        status = main()
        end_in_time(status)
        return status


def _follow(arguments: Sequence[str] | None) -> int:
    from headrace.pipeline.common.process import uncollected
    from headrace.pipeline.hosts.prestart import prestarted_learner

    with prestarted_learner(sys.argv[1:] if arguments is None else arguments):
        with uncollected():
            from headrace.pipeline.actions import follow

        return follow(arguments)
