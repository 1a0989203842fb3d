"""docs/differences.md: whatever it says is tested has a test of that name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "differences.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Defects and requests\n")[2].partition("\n## ")[0]
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][1:]
LINK = re.compile(r"\]\(([^)#]+)(?:#([^)]+))?\)")


def test_every_row_states_both_behaviours_and_the_place_in_the_source():
    assert len(ROWS) > 50
    for row in ROWS:
        assert len(row) == 4, row
        assert all(row), row
        assert LINK.search(row[3]), row


@pytest.mark.lengthy
@pytest.mark.parametrize("path", sorted({path for path, _ in LINK.findall(PAGE)}))
def test_linked_files_and_tests_exist(path):
    file = DOCS / path
    assert file.is_file()
    named = {name for target, name in LINK.findall(PAGE) if target == path and name}
    if named and file.suffix == ".py":  # else it is a heading
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        assert named <= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
