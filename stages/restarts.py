"""The three limits on restarts after crashes, as in ML-Agents."""

from __future__ import annotations

from collections import deque


class RestartBudget:
    """Counts restarts against a lifetime limit and a rate limit.

    Args:
        lifetime: number of restarts allowed in total; -1 for no limit.
        rate_n: number of restarts allowed within `period_s`; -1 for no limit.
        period_s: length of the sliding window in seconds.
    """

    def __init__(self, lifetime: int, rate_n: int, period_s: float) -> None:
        self._lifetime = lifetime
        self._rate_n = rate_n
        self._period_s = period_s
        self._times: deque[float] = deque()
        self.count = 0

    def refusal(self, now_s: float) -> str | None:
        """Return why another restart is not allowed now, as text for a message; None if it is allowed."""
        while self._times and now_s - self._times[0] > self._period_s:
            self._times.popleft()
        if 0 <= self._lifetime <= self.count:
            return f"it was restarted {_times(self.count)} (env_settings.max_lifetime_restarts is {self._lifetime})"
        if 0 <= self._rate_n <= len(self._times):
            return (
                f"it was restarted {_times(len(self._times))} within {self._period_s:g} s "
                f"(env_settings.restarts_rate_limit_n is {self._rate_n})"
            )
        return None

    def spend(self, now_s: float) -> None:
        """Count a restart that happens now."""
        self.count += 1
        self._times.append(now_s)


def _times(count: int) -> str:
    return {0: "0 times", 1: "once", 2: "twice"}.get(count, f"{count} times")
