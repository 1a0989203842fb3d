"""docs/design.md, the map of the code and the decisions name what is there: each path, each `module:Name`, each page."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [DOCS / "design.md", DOCS / "code-map.md", *sorted((DOCS / "decisions").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
NAMES = sorted(set(re.findall(r"`((?:config|headrace|queues|stages|pipeline)(?:\.\w+)*:\w+)`", TEXT)))
PATHS = sorted(
    set(re.findall(r"`((?:config|headrace|queues|stages|pipeline|tests|bin|benchmarks)/[\w./{},-]*)`", TEXT))
)
LINK = re.compile(r"\]\((?!https?:)([^)\s]*)\)")


def each_of(path: str) -> list[str]:
    """Expand `a/{b,c}/d`."""
    parts = [part.strip("{}").split(",") for part in re.split(r"(\{[^}]*\})", path)]
    return ["".join(combination) for combination in itertools.product(*parts)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as a forge makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there(name):
    module, _, attribute = name.partition(":")
    assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_there(path):
    for each in each_of(path):
        assert (ROOT / each).exists(), each


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        leads_to = (page.parent / target).resolve() if target else page
        assert leads_to.exists(), link
        assert not anchor or anchor in anchors(leads_to), link
