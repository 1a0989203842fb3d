"""The entry of a process host: reads its birth message from standard input and serves until its work is done."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Any

import msgpack

from pipeline.common.imports import import_early
from pipeline.common.signals import default_in_forks
from pipeline.control.channel import SocketControl
from pipeline.hosts.control_log import log_to_main
from pipeline.hosts.freed_memory import keep_freed_memory
from pipeline.hosts.lifeline import HostLifeline, die_with
from pipeline.hosts.links import ProcessEdges
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.serve import serve
from queues.handing import take_over
from queues.platform import open_socket

LINK = ("socket", "segment")
"""Where a link's tickets have those of a socket and of memory."""


async def run_child(birth: dict[str, Any], lifeline: HostLifeline) -> int:
    """Serve as the host that the birth message says; the process's exit status."""
    lifeline.loop = asyncio.get_running_loop()
    plan = HostPlan(**birth["plan"])
    control = await SocketControl.open(open_socket(birth["orders"]), open_socket(birth["reports"]))
    log_to_main(plan, control)
    edges = ProcessEdges(birth["links"])
    ended_well = await serve(plan, control, edges)
    if ended_well:
        await edges.close()
    return 0 if ended_well else 1


def leave_signals_to_main() -> None:
    """Let requests to end have no effect: main decides when and how."""
    numbers = (signal.SIGINT, signal.SIGTERM)  # service managers send these to every process of a service
    for number in numbers:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the games that environments start would inherit
        if sys.platform != "win32":
            signal.siginterrupt(number, False)  # calls into C go on as if nothing had come
    default_in_forks(numbers)


def receive_birth() -> dict[str, Any]:
    """Wait for the birth message, with the tickets that are good here.

    Raises:
        EOFError, ValueError: if main dies before it has sent all of it.
    """
    if sys.platform == "win32":
        data, own = sys.stdin.buffer.read(), {}
    else:
        with socket.socket(fileno=os.dup(sys.stdin.fileno())) as sock:
            data, own = take_over(sock)
    birth: dict[str, Any] = msgpack.unpackb(data, raw=False, strict_map_key=False)
    for tickets, names in ((birth, ("orders", "reports", "lifeline")), *((t, LINK) for t in birth["links"].values())):
        tickets.update((name, own.get(tickets[name], tickets[name])) for name in names)
    return birth


def main() -> int:
    """Read the birth message and serve."""
    leave_signals_to_main()
    import_early(sys.argv[2:])
    try:
        birth = receive_birth()
    except (ValueError, EOFError):  # cut short: main has died while it wrote
        return 1
    die_with(birth["parent"])
    sys.path[:] = birth["path"]  # so that what main can import can be imported here
    lifeline = HostLifeline(open_socket(birth["lifeline"]))
    if birth["plan"]["role"] in ("learner", "follower"):
        import torch

        torch.set_num_threads(1)
        keep_freed_memory()
    return asyncio.run(run_child(birth, lifeline))


if __name__ == "__main__":
    sys.exit(main())
