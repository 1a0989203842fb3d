"""A ledger of credits under audit, for whole runs: no credit is made up, lost, or granted beyond the window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from headrace.pipeline.control import CreditRequest, Grant
from headrace.pipeline.flow import CreditLedger


class AuditedLedger(CreditLedger):
    """The real ledger, and an account of its own of what comes and goes there: after each call both are the same.

    Args:
        window: gives the size of a behaviour's window.
        emitted: credits of all that was emitted so far, by behaviour and source.
        at_rest: as for every ledger.
    """

    def __init__(
        self, window: Callable[[str], int], emitted: Mapping[tuple[str, int], int], at_rest: bool = False
    ) -> None:
        super().__init__(at_rest)
        self.removed: set[int] = set()
        self.peak: dict[str, int] = defaultdict(int)
        """By behaviour: most credits outstanding."""
        self.resized: dict[str, int] = {}
        """By behaviour: the lag that its window was made for after it had been opened."""
        self.written_off: dict[str, int] = defaultdict(int)
        """By behaviour: credits that removed sources had not given back."""
        self._window = window
        self._emitted = emitted
        self._caps: dict[str, dict[int, int]] = {}
        self._begins: dict[str, int] = {}
        self._restored: dict[str, int] = {}
        self._returns: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)

    def returned_of(self, behavior: str, source: int) -> int:
        """Return the credits that were returned for a source, by whichever stage."""
        return sum(self._returns[behavior, source].values())

    def open_window(self, behavior: str, rows_per_update: int, max_policy_lag: int, restored_rows: int = 0) -> None:
        waiting = {request.source: request.used.get(behavior, 0) for request in self._requests.values()}
        self._caps[behavior], self._restored[behavior] = waiting, restored_rows
        super().open_window(behavior, rows_per_update, max_policy_lag, restored_rows)

    def close_window(self, behavior: str) -> None:
        self._caps.pop(behavior, None)
        for key in [key for key in self._returns if key[0] == behavior]:
            del self._returns[key]
        super().close_window(behavior)
        self._begins[behavior] = self._firsts[behavior]

    def resize_window(self, behavior: str, max_policy_lag: int) -> list[Grant]:
        self.resized[behavior] = max_policy_lag
        return self._audited(super().resize_window(behavior, max_policy_lag))

    def remove_source(self, source: int) -> list[Grant]:
        self.removed.add(source)
        for name, caps in self._caps.items():
            self.written_off[name] += max(0, caps.pop(source, 0) - self.returned_of(name, source))
        return self._audited(super().remove_source(source))

    def request(self, request: CreditRequest) -> list[Grant]:
        for name, used in request.used.items():
            if name in self._caps and request.source not in self.removed and self._counts(name, request.source):
                cap = 0 if name in request.gives_back else self._caps[name].get(request.source, 0)
                self._caps[name][request.source] = max(cap, used)
        return self._audited(super().request(request))

    def returned(self, by: str, behavior: str, source: int, total: int) -> list[Grant]:
        self._returns[behavior, source][by] = total
        emitted = self._restored[behavior] if source == self.RESTORED else self._emitted[behavior, source]
        assert self.returned_of(behavior, source) <= emitted, "more than was emitted"
        return self._audited(super().returned(by, behavior, source, total))

    def learned(
        self,
        behavior: str,
        version: int,
        held: int = 0,
        returned: Mapping[int, int] | None = None,
        arrived: Mapping[int, int] | None = None,
    ) -> list[Grant]:
        for source, total in (returned or {}).items():
            self._returns[behavior, source]["trainer"] = total
            emitted = self._restored[behavior] if source == self.RESTORED else self._emitted[behavior, source]
            assert self.returned_of(behavior, source) <= emitted, "more than was emitted"
        return self._audited(super().learned(behavior, version, held, returned, arrived))

    def resume(self, why: str = "") -> list[Grant]:
        return self._audited(super().resume(why))

    def _counts(self, behavior: str, source: int) -> bool:
        return source >= self._begins.get(behavior, 0)

    def _audited(self, grants: list[Grant]) -> list[Grant]:
        granted = {name for grant in grants for name in grant.caps}
        for grant in grants:
            assert grant.source not in self.removed, "a grant for a source that was removed"
            for name, cap in grant.caps.items():
                self._caps[name][grant.source] = cap
        for name, caps in self._caps.items():
            out = sum(max(0, cap - self.returned_of(name, source)) for source, cap in caps.items())
            out += max(0, self._restored[name] - self.returned_of(name, self.RESTORED))
            assert self.outstanding(name) == out
            assert out <= self._window(name) or name not in granted, "granted beyond the window"
            self.peak[name] = max(self.peak[name], out)
        return grants
