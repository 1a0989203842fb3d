"""docs/decisions: each record has its four parts and is named in the code, and what records name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "decisions"
RECORDS = {path.name[:3]: path for path in sorted(FOLDER.glob("*.md")) if path.name != "README.md"}
CODE = [ROOT / name for name in ("config", "queues", "stages", "pipeline", "headrace", "bin")]
LANGUAGES = {".py", ".c", ".h", ".js", ".html", ""}


def named_in_code():
    """Numbers of records by what names them: `docs/decisions/012`."""
    found = {}
    for folder in CODE:
        for path in folder.rglob("*"):
            if path.suffix in LANGUAGES and path.is_file() and "__pycache__" not in path.parts:
                for number in re.findall(r"docs/decisions/(\w+)", path.read_text(encoding="utf-8")):
                    found.setdefault(number, path)
    return found


def test_records_are_numbered_without_gaps():
    assert list(RECORDS) == [f"{number:03}" for number in range(1, len(RECORDS) + 1)]
    assert len(RECORDS) == len(list(FOLDER.glob("*.md"))) - 1, "two records have the same number"


def test_the_code_names_each_record_and_no_other():
    assert sorted(named_in_code()) == sorted(RECORDS)


@pytest.mark.parametrize("path", RECORDS.values(), ids=RECORDS)
def test_a_record_has_its_four_parts(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(rf"# {path.name[:3]}\. \S.*[^.]", lines[0])
    assert re.fullmatch(r"\d{3}(-[a-z0-9]+)+", path.stem)
    headings = [line for line in lines if line.startswith("#")][1:]
    assert headings == ["## Context", "## Decision", "## Alternatives", "## Consequences"]
    texts = re.split(r"^## .*$", "\n".join(lines), flags=re.MULTILINE)[1:]
    assert all(text.strip() for text in texts), "each heading has a text"


def test_the_index_lists_each_record_with_its_title():
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[(\d{3})\]\(([\w.-]+)\) (.+)$", index, re.MULTILINE)
    titles = [(number, path.name, path.read_text("utf-8").split("\n")[0]) for number, path in RECORDS.items()]
    assert [(number, name, f"# {number}. {title}") for number, name, title in listed] == titles
