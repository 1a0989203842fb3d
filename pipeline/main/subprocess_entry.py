"""The process that calls a single function.

It reads the request from standard input and writes the answer to a file.
"""

from __future__ import annotations

import os
import sys

from headrace.pipeline.common.output import prepare_output
from headrace.pipeline.hosts.child import leave_signals_to_main
from headrace.pipeline.hosts.parent_death import HostLifeline, hold_lifeline


def main(line: str, crash_file: str) -> None:
    """Answer the request, and exit immediately, even if the call has left threads running."""
    lifeline = hold_lifeline(line)
    prepare_output()  # for the output of the user's code
    leave_signals_to_main()
    import traceback

    from headrace.pipeline.hosts.crash_file import open_crash_file, write_crash_file

    descriptor = open_crash_file(crash_file)
    try:
        _answer(descriptor, lifeline)
    except BaseException:
        write_crash_file(descriptor, traceback.format_exc())
        os._exit(1)
    os._exit(0)


def _answer(descriptor: int, lifeline: HostLifeline) -> None:
    import faulthandler  # imported here, so that a failed import is reported
    from pathlib import Path

    from headrace.config import RunConfig
    from headrace.config.environment_kinds import load_entry
    from headrace.config.tables import import_plugins
    from headrace.pipeline.common.process import follow_path_of_main, import_early
    from headrace.queues.packing import pack, unpack
    from headrace.stages.environments.given import take_over
    from headrace.stages.errors import describe_error
    from headrace.surroundings import keep_surroundings

    request = unpack(sys.stdin.buffer.read())
    follow_path_of_main(request["path"])
    keep_surroundings()
    import_early(request["imports"])
    lifeline.let_users_code_run()
    # At the time limit, the process ends itself, even if no process is left to end it.
    faulthandler.dump_traceback_later(request["timeout_s"], exit=True, file=descriptor)
    path = Path(request["config_path"]) if request["config_path"] else None
    try:
        import_plugins(request["plugins"])
        take_over(request["given"])
        answer = load_entry(request["function"])(RunConfig.from_plain(request["config"], path), *request["arguments"])
    except BaseException as error:  # even SystemExit, which only the function can have raised
        written = {"error": describe_error(error)}
    else:
        written = {"answer": answer}
    faulthandler.cancel_dump_traceback_later()
    part = Path(request["folder"]) / "answer.part"
    part.write_bytes(pack(written))
    part.replace(part.with_suffix(""))


if __name__ == "__main__":
    main(*sys.argv[2:])
