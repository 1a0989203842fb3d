"""The public names: each is there, and none costs anything before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace


@pytest.mark.parametrize("name", headrace.__all__)
def test_every_public_name_leads_to_its_home(name):
    found = getattr(headrace, name)
    assert found.__name__ == name
    assert found.__doc__


def test_type_checkers_and_the_table_know_the_same_names():
    tree = ast.parse(Path(headrace.__file__).read_text())
    (seen,) = (node for node in tree.body if isinstance(node, ast.If))
    named = {alias.name: node.module for node in seen.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert named == headrace._HOMES
    assert sorted(named) == headrace.__all__


def test_a_name_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no attribute 'train'; it has .*load_config, .*run"):
        headrace.train  # noqa: B018


def test_dir_lists_the_public_names():
    assert dir(headrace) == list(headrace.__all__)


def test_to_import_the_package_imports_nothing_else_of_ours():
    listed = (
        "import sys, headrace; print([name for name in ('config', 'stages', 'torch', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True).stdout.strip() == "[]"
