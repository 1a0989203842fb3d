"""The public names: each is there, none costs anything before it is used, and the pages tell of no others."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import headrace
from headrace.paths import PARTS

ROOT = Path(__file__).parents[2]
MODULES = ("headrace", *(f"headrace.{name}" for name in ("games", "godot", "testing", "training", "unity")))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_exists(module):
    public = import_module(module)
    for name in public.__all__:
        assert getattr(public, name) is not None
        assert name.isupper() or getattr(public, name).__doc__, name


def test_an_unknown_name_is_refused_with_the_available_names():
    with pytest.raises(AttributeError, match=r"no attribute 'train'; it has .*load_config, .*run"):
        headrace.train  # noqa: B018


def test_importing_the_package_imports_no_other_package_of_headrace():
    listed = (
        "import sys, headrace; "
        "print([n for n, module in sys.modules.items() if module and n.startswith(('headrace.', 'numpy', 'torch'))])"
    )
    assert subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True).stdout.strip() == "[]"


def told() -> list[tuple[str, str, str]]:
    """What pages and examples import of ours: the place, the module, the name."""
    texts = [(page.name, code) for page in PAGES for code in CODE.findall(page.read_text(encoding="utf-8"))]
    texts += [
        (str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in (ROOT / "examples").rglob("*.py")
    ]
    found = []
    for place, text in texts:
        for node in ast.walk(ast.parse(text.replace("…", "..."))):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.partition(".")[0] in ("headrace", *PARTS)
            ):
                found += [(place, node.module, alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.partition(".")[0] in ("headrace", *PARTS)]
                found += [(place, name, "") for name in names]
    return found


def test_names_imported_by_pages_and_examples_are_public():
    found = told()
    strange = [
        each
        for each in found
        if not (ROOT.joinpath(*Path(each[0]).parts[:2]) / f"{each[1]}.py").is_file()  # a module of the example's own
        and (each[1] not in MODULES or (each[2] and each[2] not in import_module(each[1]).__all__))
    ]
    assert not strange
    assert len(found) > 50, "the imports were found"
