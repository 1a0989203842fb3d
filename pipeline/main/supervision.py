"""Supervision of hosts and of main's tasks.

`Supervisor` knows which hosts the coordinator may restart, and which have fallen silent. `GuardedTasks` runs all of
main's tasks: an exception in any of them ends the run with a named failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from headrace.config import EnvSettings
from headrace.config.pipeline import PAUSE_S, START_S, STARTING_FACTOR, SupervisionSettings
from headrace.pipeline.common.graph import MAIN
from headrace.pipeline.control import HostFailed
from headrace.pipeline.hosts.protocol import describe_failure
from headrace.stages.errors import is_failure
from headrace.stages.restarts import RestartBudget

SupervisionSection = Literal["actors", "learners", "main"]
"""Name of a section in `pipeline.supervision`."""


@dataclass(frozen=True)
class Silence:
    """A host that has been silent for too long."""

    host: str
    seconds: float
    ends: bool
    """True to end the host, False to log a warning."""
    key: str
    """The YAML key that sets the limit."""
    starting: bool = False
    """True if the host was still starting or preparing."""


@dataclass
class _SignOfLife:
    """A host's last sign of life."""

    section: SupervisionSection
    since: float
    starting: bool
    share: float
    warned: bool = False


# Reports prove that the event loop runs; counters prove that a stage does, however slow it is (docs/decisions/013).
class Supervisor:
    """Tracks restart limits and signs of life for all hosts. Pure: times are passed in.

    Args:
        settings: ML-Agents' restart limits and `timeout_wait`.
        limits: the settings in `pipeline.supervision`.
    """

    def __init__(self, settings: EnvSettings, limits: SupervisionSettings) -> None:
        self._settings = settings
        self._limits = limits
        self._budgets: dict[str, RestartBudget] = {}
        self._heard: dict[str, _SignOfLife] = {}
        self._looked: float | None = None

    def started(self, host: str, section: SupervisionSection, now_s: float, share: float = 1.0) -> None:
        """Add a started host; `share` scales its section's limits."""
        self._heard[host] = _SignOfLife(section, now_s, section != "main", share)

    def alive(self, host: str, now_s: float, silent_s: float = 0.0) -> None:
        """Record a host's sign of life; its most silent stage last made progress `silent_s` seconds ago."""
        heard = self._heard.get(host)
        if heard is None:
            return
        since = max(now_s - silent_s, heard.since)  # the host's clock keeps running while main is stopped
        if not silent_s:
            heard.warned, since = False, now_s
        heard.since, heard.starting = since, heard.starting and silent_s > 0

    def preparing(self, host: str, now_s: float, begins: bool) -> None:
        """Record that a host begins or ends a preparation, which may take as long as its start."""
        self.alive(host, now_s)
        heard = self._heard.get(host)
        if heard is not None:
            heard.starting = begins and heard.section != "main"

    def ended(self, host: str) -> None:
        """Remove a host that has ended."""
        self._heard.pop(host, None)

    def silent(self, now_s: float) -> list[Silence]:
        """Return the silent hosts that now need a warning (one for each silence) or must now be ended."""
        pause = now_s - self._looked if self._looked is not None else 0.0
        self._looked = now_s
        silences = []
        for host, heard in list(self._heard.items()):
            if pause > PAUSE_S:
                heard.since = min(heard.since + pause, now_s)
            silence = self._judge(host, heard, now_s - heard.since)
            if silence is None:
                continue
            silences.append(silence)
            heard.warned = True
            if silence.ends:
                del self._heard[host]
        return silences

    def _judge(self, host: str, heard: _SignOfLife, seconds: float) -> Silence | None:
        limits = getattr(self._limits, heard.section)
        key = f"pipeline.supervision.{heard.section}"
        end_s, end_key = limits.end_s, f"{key}.end_s"
        starting, factor = heard.starting, STARTING_FACTOR if heard.starting else 1
        if end_s is None and heard.section == "actors":
            end_s = float(self._settings.timeout_wait)
            if starting:  # `timeout_wait` applies only to games' answers
                end_s = max(end_s, START_S / factor)
            else:
                end_key = "env_settings.timeout_wait"
        if end_s is not None and seconds > end_s * factor * heard.share:
            return Silence(host, seconds, True, end_key, starting)
        if seconds > limits.warn_s * factor * heard.share and not heard.warned:
            return Silence(host, seconds, False, f"{key}.warn_s", starting)
        return None

    def refusal(self, host: str, now_s: float) -> str | None:
        """Return why a dead host must not be restarted; if it may be restarted, count the restart and return None."""
        limits = self._settings
        budget = self._budgets.setdefault(
            host,
            RestartBudget(
                limits.max_lifetime_restarts,
                limits.restarts_rate_limit_n,
                limits.restarts_rate_limit_period_s,
            ),
        )
        refusal = budget.refusal(now_s)
        if refusal is None:
            budget.spend(now_s)
        return refusal


log = logging.getLogger(__name__)


class GuardedTasks:
    """Main's tasks, including runners: tasks that carry items through main until their queues end.

    Args:
        fail: called with a failure, which ends the run.

    Attributes:
        group: the task group that owns all tasks.
    """

    def __init__(self, fail: Callable[[HostFailed], object]) -> None:
        self.group = asyncio.TaskGroup()
        self._fail = fail
        self._runners: list[asyncio.Task[None]] = []

    @contextmanager
    def failing(self) -> Iterator[None]:
        """End the run with a failure if this context raises an exception."""
        try:
            yield
        except BaseException as error:
            if not is_failure(error):
                raise
            self._fail(describe_failure(MAIN, error))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; if the task raises an exception, the run fails."""
        task = self.group.create_task(self._guarded(work))
        task.add_done_callback(lambda _: work.close())  # or Python warns about a coroutine cancelled at its start
        return task

    def run(self, runner: Coroutine[Any, Any, None]) -> None:
        """Start a runner as a guarded task."""
        task = self.start(runner)
        task.set_name("a queue of main")
        self._runners.append(task)

    async def end_runners(self, patience_s: float) -> None:
        """Wait for the runners, whose queues have ended, to end; cancel those that take longer than `patience_s`."""
        _, left = await asyncio.wait(self._runners, timeout=patience_s) if self._runners else ((), ())
        for task in left:
            log.warning("%s did not end within %.0f s; cancelling it.", task.get_name(), patience_s)
            task.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        with self.failing():
            await work
