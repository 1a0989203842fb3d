"""The fenced blocks of the README and of the pages, each with what the page says of its being run.

A comment in the line before a block says what runs it in place of tests/test_page_code.py, or why nothing does:

    <!-- run by tests/stages/test_testing_page.py -->
    <!-- not run: needs a build of Unity's -->
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
BLOCK = re.compile(
    r"^(?: *<!-- (?P<mark>[^\n]*) -->\n)?(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `mark` is the comment before it, or empty."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def place(self) -> str:
        """The page and line, for messages and for the names of tests."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def is_ours(self) -> bool:
        """True if tests/test_page_code.py runs the block."""
        return not self.mark.startswith(("not run: ", "run by "))


def blocks(*languages: str) -> list[Block]:
    """All blocks of some languages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match["language"] in languages:
                line = text.count("\n", 0, match.start("text"))
                content = textwrap.dedent(match["text"])
                found.append(Block(page, line, match["language"], content, match["mark"] or ""))
    return found


def commands(block: Block) -> list[str]:
    """The commands of a block of a shell's: lines that end with a backslash joined."""
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]
