"""The entry point of a process host: imports the hosts' modules, then runs the hosts that main assigns to it."""

from __future__ import annotations

import signal
import sys
from functools import partial

from headrace.pipeline.common.output import prepare_output
from headrace.pipeline.hosts.parent_death import open_lifeline
from headrace.stop_requests import taken_requests

if sys.platform == "win32":
    from headrace.win32 import on_console_end, request


def leave_signals_to_main() -> None:
    """Ignore stop requests, because main decides when and how this process ends."""
    from headrace.pipeline.common.process import default_in_forks

    numbers = taken_requests()
    for number in numbers:  # service managers signal every process of a service
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which games started by environments would inherit
        if sys.platform != "win32":
            signal.siginterrupt(number, False)  # restart interrupted system calls
    default_in_forks(numbers)
    if sys.platform == "win32":
        # A closing console notifies one process after the other has ended, and main may be the last.
        from headrace.pipeline.hosts.process_cleanup import mark_of_main

        on_console_end(partial(request, mark_of_main()), lambda: None)


def main(line: str, crash_file: str, *modules: str) -> int:
    """Import the hosts' modules and run the hosts; return the exit status."""
    lifeline = open_lifeline(line)
    prepare_output()  # for the output of the user's code
    leave_signals_to_main()
    import traceback

    from headrace.pipeline.common.process import import_early, uncollected
    from headrace.pipeline.hosts.crash_file import open_crash_file, write_crash_file

    descriptor = open_crash_file(crash_file)
    try:
        with uncollected():
            from headrace.pipeline.hosts.run_host import run_host_process

            import_early(modules)
        return run_host_process(lifeline)
    except BaseException:  # even SystemExit is an error, because no host may request an exit
        write_crash_file(descriptor, traceback.format_exc())
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[2:]))
