"""The table of what was run, at the end of `pytest -m slow tests/chaos`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from chaos_run import SILENCE
from chaos_table import Cell, cells, tabulated


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("markexpr") != "slow":
        return
    for kind in SILENCE:
        by_name = {f"{kind}|{cell}": cell for cell in cells(kind)}
        held, failed = ([*_cells_of(by_name, terminalreporter, outcome)] for outcome in ("passed", "failed"))
        if held or failed:
            terminalreporter.write_line(f"\nHosts of kind {kind}:\n\n{tabulated(held, failed)}")


def _cells_of(by_name: Mapping[str, Cell], terminalreporter: pytest.TerminalReporter, outcome: str) -> Iterator[Cell]:
    for report in terminalreporter.getreports(outcome):
        name = report.nodeid.partition("[")[2].rpartition("]")[0]
        if name in by_name:
            yield by_name[name]
