"""All entries of the zoo's own files, which an installed rl_zoo3 brings, and the page that lists what comes of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from rl_zoo_table import keys_table, table

PAGE = Path(__file__).parents[3] / "docs" / "stable-baselines3.md"


@pytest.mark.slow
def test_the_page_states_the_result_for_each_entry():
    spec = find_spec("rl_zoo3")  # not imported: only its files are read
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package rl_zoo3 is not there")
    folder = Path(next(iter(spec.submodule_search_locations))) / "hyperparams"
    assert table(folder) in PAGE.read_text(encoding="utf-8")


def test_the_page_states_the_conversion_of_each_key():
    assert keys_table() in PAGE.read_text(encoding="utf-8")
