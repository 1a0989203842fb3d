"""Entry points of the commands `run-pipeline`, `mlagents-learn` and `gdrl`.

Slow imports happen inside the functions below, where Ctrl-C ends them cleanly.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.stop_requests import end_in_time, ended_at_once


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 success, 1 failure, 2 mistake in the command or configuration.

    Args:
        arguments: the command's arguments; None to use this process's arguments, and to exit with the status.
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
        from headrace.pipeline.gdrl_command import main

        status = main()
        end_in_time(status)
        return status


def _follow(arguments: Sequence[str] | None) -> int:
    from headrace.pipeline.common.process import uncollected

    with uncollected():
        from headrace.pipeline.actions import follow
        from headrace.pipeline.command.parser import program
        from headrace.pipeline.common.output import complain
        from headrace.pipeline.common.process import lacks_torch

    try:
        return follow(arguments)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        complain(f"{program()}: {lacks_torch('this')}")
        return 2
