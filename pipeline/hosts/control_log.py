"""The log of a host that is not in main: its records go up the control channel."""

from __future__ import annotations

import logging

from pipeline.control.channel import ControlEnd
from pipeline.control.messages import LogLine
from pipeline.hosts.plan import HostPlan


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


def log_to_main(plan: HostPlan, control: ControlEnd) -> None:
    """Send what this process logs from now on to main."""
    root = logging.getLogger()
    root.addHandler(ControlLogHandler(control))
    root.setLevel(logging.DEBUG if plan.config.get("debug") else logging.INFO)
