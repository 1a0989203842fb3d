"""Our text is a native engineer's: no expression of `english_words.py` in the pages, docstrings, comments and messages.

Code is no text: fenced blocks, `inline code`, the targets of links, names, and strings of one word are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from english_words import FOREIGN

pytest.importorskip("proselint", reason="a dependency of development alone")

from proselint.checks import __register__ as proselint_checks
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).parents[1]
COVERED = (
    "*.md",
    "docs/*.md",
    "docs/decisions/*.md",
    "docs/api/*.md",
    "docs/*.py",
    "examples/**/*",
    "benchmarks/*",
    "stages/actor/*.py",
    "stages/agent/*.py",
    "stages/league/*.py",
    "stages/policy/**/*.py",
    "stages/trainer/**/*.py",
    "config/**/*",
    "queues/**/*",
    "stages/league/*",
    "headrace/*.py",
    "stages/*.py",
    "stages/environments/**/*",
    "stages/evaluation/*",
    "stages/exhibition/*",
    "stages/games/**/*",
    "stages/ghost/*",
    "pipeline/common/*.py",
    "pipeline/command/*.py",
    "pipeline/hosts/**/*.py",
    "pipeline/main/*.py",
    "pipeline/parts/**/*.py",
    "pipeline/policies/*.py",
    "pipeline/reporting/*.py",
    "pipeline/run_folder/*.py",
    "pipeline/serving/*.py",
    "pipeline/*.py",
    "pipeline/monitor/**/*",
    "pipeline/prediction/*.py",
    "pipeline/roles/*.py",
)
"""Files and folders whose text is clean; a glob each. What is added here stays clean."""
ENTRIES = [(re.compile(rf"(?:{words})\b".replace(" ", r"\s+")), advice) for words, advice in FOREIGN.items()]
ANY = re.compile(rf"\b(?:{'|'.join(words.pattern for words, _ in ENTRIES)})")
"""All in one, as one pass over the text is ten times as fast as one for each."""
NOT_TEXT = re.compile(
    r"<!--.*?-->|^ *```.*?^ *```|(?<!`)``[^`].*?``|`[^`]*`|\]\([^)]*\)|<[^>\n]*>", re.DOTALL | re.MULTILINE
)
PYTHON = re.compile(
    r'(?P<string>[a-z]{0,2}"""(?:\\.|[^\\])*?"""|[a-z]{0,2}"(?:\\.|[^"\\\n])*"|[a-z]{0,2}\'(?:\\.|[^\'\\\n])*\')'
    r"|(?P<comment>#.*)",
    re.IGNORECASE,
)
SCRIPT = re.compile(r'(?P<string>"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`)|(?P<comment>/\*(?:[^*]|\*(?!/))*\*/|//.*)')
"""Strings and comments of JavaScript."""
CODE = {".py": PYTHON, ".js": SCRIPT, ".mjs": SCRIPT}
PAGES = ("*.md", "docs/*.md", "docs/decisions/*.md", "docs/api/*.md", "examples/**/*.md")
UNJUDGED = {"typography": False}
"""What proselint wants of books: curly quotes, and résumé with its accents."""
FIELD = re.compile(r"\{[^{}]*\}")


def blank(match: re.Match[str]) -> str:
    """Keep the lines of omitted text, so that places stay right."""
    return "".join(each if each == "\n" else "·" for each in match[0])


def text_of(code: str, texts: re.Pattern[str]) -> str:
    """Docstrings, comments and messages, at their places."""
    parts, at = [], 0
    for match in texts.finditer(code):
        parts.append(re.sub(r"[^\n]+", "·", code[at : match.start()]))
        string = match["string"]
        parts.append(match[0] if string is None or re.search(r"\s", string) else "·")
        if texts is SCRIPT:
            parts[-1] = parts[-1].replace("`", '"')  # a template, which is not code as in Markdown
        if string is not None:
            parts[-1] = FIELD.sub(blank, parts[-1])
        at = match.end()
    return "".join(parts)


def found(path: Path) -> list[str]:
    """One line for each expression: the place, the words, what to write."""
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    text = path.read_text(encoding="utf-8")
    text = NOT_TEXT.sub(blank, text_of(text, CODE[path.suffix]) if path.suffix in CODE else text).lower()
    return [
        f"{place}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}: write {advice_for(text, match.start())}"
        for match in ANY.finditer(text)
    ]


def advice_for(text: str, at: int) -> str:
    """What stands in the list for the expression at a place."""
    return next(advice for words, advice in ENTRIES if words.match(text, at))


@pytest.mark.parametrize("place", COVERED)
def test_text_is_free_of_foreign_expressions(place):
    paths = sorted(path for path in ROOT.glob(place) if path.suffix in (".md", *CODE) and ".min." not in path.name)
    assert paths, "the table names what is there"
    mistakes = [line for path in paths for line in found(path)]
    assert not mistakes, "\n".join(mistakes)


def test_pages_pass_proselint():
    CheckRegistry().register_many(proselint_checks)
    settings = {**DEFAULT, "checks": {**DEFAULT["checks"], **UNJUDGED}}
    mistakes = []
    for path in sorted({path for place in PAGES for path in ROOT.glob(place)}):
        text = NOT_TEXT.sub(blank, path.read_text(encoding="utf-8"))
        text = re.sub(r"\d|^ *[|#].*$", "·", text, flags=re.MULTILINE)  # numbers, tables and headings may be repeated
        for each in LintFile(str(path.relative_to(ROOT)), text).lint(settings):
            mistakes.append(f"{path.relative_to(ROOT)}:{each.pos[0]}: {each.check_result.message}")
    assert not mistakes, "\n".join(mistakes)


def test_the_checker_reads_only_text(tmp_path):
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(
        "<!-- `anew > -->Begun\nanew, `anew` [x](anew.md).\n```sh\nanew\n```\nIt goes\non.\n", encoding="utf-8"
    )
    module.write_text('told = "told"\nwarn(f"was told {told} twice")  # asked\n', encoding="utf-8")
    script = tmp_path / "script.js"
    script.write_text('told("told");\nsay(`was told ${told} twice`); // asked\n/* anew */\n', encoding="utf-8")
    assert [line.partition(": write")[0] for line in found(page)] == ["page.md:2: 'anew'", "page.md:6: 'goes\\non'"]
    assert [line.partition(": write")[0] for line in found(module)] == ["module.py:2: 'told'", "module.py:2: 'asked'"]
    lines = [line.partition(": write")[0] for line in found(script)]
    assert lines == ["script.js:2: 'told'", "script.js:2: 'asked'", "script.js:3: 'anew'"]
