"""Supervision of hosts: which may be restarted (the coordinator restarts them), and which have fallen silent."""

from __future__ import annotations

from config import EnvSettings
from stages.restarts import RestartBudget

STARTING_FACTOR = 5
"""Before its first word a host has this many times `timeout_wait`: it imports libraries and builds environments."""


class Supervisor:
    """Restart limits and heartbeats of hosts. Pure: times are arguments.

    Args:
        settings: ML-Agents' restart limits and `timeout_wait`.
    """

    def __init__(self, settings: EnvSettings) -> None:
        self._settings = settings
        self._budgets: dict[str, RestartBudget] = {}
        self._heard: dict[str, tuple[float, float]] = {}

    def started(self, host: str, now_s: float) -> None:
        """A host was started."""
        self._heard[host] = (now_s, self._settings.timeout_wait * STARTING_FACTOR)

    def alive(self, host: str, now_s: float) -> None:
        """A host has given a sign of life."""
        self._heard[host] = (now_s, float(self._settings.timeout_wait))

    def silent(self, now_s: float) -> list[str]:
        """Hosts that have been silent for too long; each is named once until its next sign of life or start."""
        silent = [host for host, (since, patience) in self._heard.items() if now_s - since > patience]
        for host in silent:
            del self._heard[host]
        return silent

    def refusal(self, host: str, now_s: float) -> str | None:
        """Return why a dead host must not be started again; None if it may, and then that counts as a restart."""
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
