"""The entry of a process host: reads its birth message from standard input and serves until its work is done."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from pipeline.common.imports import import_early
from pipeline.common.signals import default_in_forks
from pipeline.hosts.births import BirthLine, run_host, serve_together
from pipeline.hosts.freed_memory import keep_freed_memory
from pipeline.hosts.lifeline import HostLifeline, die_with
from queues.platform import open_socket


def leave_signals_to_main() -> None:
    """Let requests to end have no effect: main decides when and how."""
    numbers = (signal.SIGINT, signal.SIGTERM)  # service managers send these to every process of a service
    for number in numbers:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the games that environments start would inherit
        if sys.platform != "win32":
            signal.siginterrupt(number, False)  # calls into C go on as if nothing had come
    default_in_forks(numbers)


def main() -> int:
    """Read the birth message and serve."""
    leave_signals_to_main()
    import_early(sys.argv[2:])
    births = BirthLine()
    try:
        birth = births.receive()
    except (ValueError, EOFError):  # cut short: main has died while it wrote
        return 1
    die_with(birth["parent"])
    sys.path[:] = birth["path"]  # so that what main can import can be imported here
    lifeline = HostLifeline(open_socket(birth["lifeline"]))
    if birth["plan"]["role"] in ("learner", "follower"):
        import torch

        torch.set_num_threads(1)
        keep_freed_memory()
    return asyncio.run(run_child(birth, births, lifeline))


async def run_child(birth: dict[str, Any], births: BirthLine, lifeline: HostLifeline) -> int:
    """Serve as the host that the birth message says, and as others that follow; the process's exit status."""
    lifeline.loop = asyncio.get_running_loop()
    if "number" in birth:
        await serve_together(birth, births)
        return 0
    return await run_host(birth)


if __name__ == "__main__":
    sys.exit(main())
