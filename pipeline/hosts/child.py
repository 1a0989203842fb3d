"""The entry of a process host: reads its start message from standard input and serves until its work is done."""

from __future__ import annotations

import signal
import sys

from headrace.pipeline.common.output import prepare_output
from headrace.pipeline.common.process import default_in_forks, import_early, uncollected


def leave_signals_to_main() -> None:
    """Let requests to end have no effect: main decides when and how."""
    numbers = (signal.SIGINT, signal.SIGTERM)  # service managers send these to every process of a service
    for number in numbers:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the games that environments start would inherit
        if sys.platform != "win32":
            signal.siginterrupt(number, False)  # calls into C go on as if nothing had come
    default_in_forks(numbers)


def main() -> int:
    """Import what the host will need, read the start message and serve; the exit status."""
    prepare_output()  # for what the user's code prints
    leave_signals_to_main()
    with uncollected():
        from headrace.pipeline.hosts.host_process import run_host_process

        import_early(sys.argv[2:])
    return run_host_process()


if __name__ == "__main__":
    sys.exit(main())
