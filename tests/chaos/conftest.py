"""The table of what was run, at the end of `pytest -m slow tests/chaos`."""

from __future__ import annotations

import pytest
from chaos_table import Cell, cells, tabulated


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("markexpr") != "slow":
        return
    by_name = {str(cell): cell for cell in cells()}

    def cells_of(outcome: str) -> list[Cell]:
        names = [report.nodeid.partition("[")[2].rpartition("]")[0] for report in terminalreporter.getreports(outcome)]
        return [by_name[name] for name in names if name in by_name]

    terminalreporter.write_line(tabulated(cells_of("passed"), cells_of("failed")))
