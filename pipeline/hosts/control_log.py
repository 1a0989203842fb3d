"""The log of a host that is not in main: its records go up the control channel.

Of several hosts in one process each has its own channel: a record goes up that of the host in whose task it was made,
and what a thread without a host logs goes up that of the first.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

from headrace.pipeline.control.channel import ControlEnd
from headrace.pipeline.control.messages import LogLine
from headrace.pipeline.hosts.plan import HostPlan

_CHANNEL: ContextVar[ControlEnd | None] = ContextVar("channel of the host's log", default=None)


class ControlLogHandler(logging.Handler):
    """Sends log records up to main, which shows them to the user."""

    def __init__(self, control: ControlEnd) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            (_CHANNEL.get() or self._control).send(LogLine(record.levelno, record.name, self.format(record)))
        except Exception:
            self.handleError(record)


def log_to_main(plan: HostPlan, control: ControlEnd) -> None:
    """Send what this task and its own tasks log from now on to main, and all else that this process does."""
    _CHANNEL.set(control)
    root = logging.getLogger()
    if not any(isinstance(handler, ControlLogHandler) for handler in root.handlers):
        root.addHandler(ControlLogHandler(control))
    root.setLevel(logging.DEBUG if plan.config.get("debug") else logging.INFO)
