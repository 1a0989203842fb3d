"""The entry of a process host: reads its birth message from standard input and serves until its work is done."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any

import msgpack

from pipeline.control.channel import ControlEnd, SocketControl
from pipeline.control.messages import LogLine
from pipeline.hosts.links import ProcessEdges
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.serve import serve
from queues.platform import open_socket


class ControlLogHandler(logging.Handler):
    """Sends log records up to main, which shows them to the user."""

    def __init__(self, control: ControlEnd) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            self._control.send(LogLine(record.levelno, record.name, self.format(record)))
        except Exception:
            self.handleError(record)


async def run_child(birth: dict[str, Any]) -> int:
    """Serve as the host that the birth message says; the process's exit status."""
    plan = HostPlan(**birth["plan"])
    reader, writer = await asyncio.open_connection(sock=open_socket(birth["control"]))
    control = SocketControl(reader, writer)
    root = logging.getLogger()
    root.addHandler(ControlLogHandler(control))
    root.setLevel(logging.DEBUG if plan.config.get("debug") else logging.INFO)
    edges = ProcessEdges(birth["links"])
    ended_well = await serve(plan, control, edges)
    if ended_well:
        await edges.close()
    return 0 if ended_well else 1


def main() -> int:
    """Read the birth message and serve."""
    for number in (signal.SIGINT, signal.SIGTERM):  # service managers send these to every process of a service
        signal.signal(number, signal.SIG_IGN)  # main decides when and how to stop
    birth = msgpack.unpackb(sys.stdin.buffer.read(), raw=False, strict_map_key=False)
    if birth["plan"]["role"] == "learner":
        import torch

        torch.set_num_threads(1)
    return asyncio.run(run_child(birth))


if __name__ == "__main__":
    sys.exit(main())
