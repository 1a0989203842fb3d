"""docs/design.md names what is there: each path, and each `module:Name`."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?:config|headrace|queues|stages|pipeline)(?:\.\w+)*:\w+)`", PAGE)))
PATHS = sorted(
    set(re.findall(r"`((?:config|headrace|queues|stages|pipeline|tests|bin|benchmarks)/[\w./{},-]*)`", PAGE))
)


def each_of(path: str) -> list[str]:
    """Expand `a/{b,c}/d`."""
    parts = [part.strip("{}").split(",") for part in re.split(r"(\{[^}]*\})", path)]
    return ["".join(combination) for combination in itertools.product(*parts)]


def test_the_page_names_some():
    assert len(NAMES) > 20
    assert len(PATHS) > 20


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there(name):
    module, _, attribute = name.partition(":")
    assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_there(path):
    for each in each_of(path):
        assert (ROOT / each).exists(), each
