"""Parts of a run are what only some runs have: other runs go on without their folders and their entries in the table."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_configs import INLINE, cartpole

from headrace.paths import PARTS
from headrace.pipeline.common.run_parts import RUN_PARTS

ROOT = Path(__file__).parents[3]
TABLE = Path("pipeline", "common", "run_parts.py")


IMPORT = re.compile(r"^ *(?:from|import) headrace\.pipeline\.parts(?:\.| import )(\w+)", re.MULTILINE)


def test_only_the_table_names_a_part():
    found, inside = [], set()
    for path in (path for part in (*PARTS, "headrace") for path in (ROOT / part).rglob("*.py")):
        place = path.relative_to(ROOT)
        own = Path(place.parts[2]).stem if place.parts[:2] == ("pipeline", "parts") else None
        named = set(IMPORT.findall(path.read_text(encoding="utf-8")))
        found += [f"{place}: {name}" for name in named - {own}]
        inside |= {own} - {None, "__init__"}
    assert not found
    assert inside == set(RUN_PARTS)


WATCHED = """
import runpy, sys

first = {}


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("grpc", "google.protobuf", "sympy", "aiohttp", "prometheus_client"):
            frame = sys._getframe(1)
            while frame.f_globals["__name__"].partition(".")[0] in ("importlib", "google"):
                frame = frame.f_back
            first[name] = frame.f_globals["__name__"]


sys.meta_path.insert(0, Watch())
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(first)
"""
"""The command, which then says what was imported first by whom."""


@pytest.mark.lengthy
def test_a_run_that_needs_no_part_works_with_all_deleted_and_imports_no_engines_or_servers(tmp_path):
    checkout = tmp_path / "checkout"
    for folder in (*PARTS, "bin", "headrace"):
        shutil.copytree(ROOT / folder, checkout / folder, symlinks=True)  # compiled modules too
    for part in RUN_PARTS:
        folder = checkout / "pipeline" / "parts" / part
        shutil.rmtree(folder) if folder.is_dir() else folder.with_suffix(".py").unlink()
        delete_entry(checkout / TABLE, part)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(cartpole(behaviors__CartPole__max_steps=500, **INLINE)))
    command = [
        sys.executable,
        "-c",
        WATCHED,
        str(checkout / "bin" / "run-pipeline"),
        str(config),
        "--results-dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Exported" in done.stderr + done.stdout
    importers = ast.literal_eval(done.stdout.splitlines()[-1])
    assert not importers.keys() & {"grpc", "aiohttp", "prometheus_client"}
    assert "sympy" not in importers, "torch imports it at the first use of what needs it"
    assert importers["google.protobuf"].startswith(("tensorboard.", "headrace.stages.policy.onnx.")), importers


def delete_entry(table: Path, part: str) -> None:
    """Delete the lines of an entry."""
    text = table.read_text(encoding="utf-8")
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    entry = next(each for call in calls for each in call.keywords if each.arg == part)
    lines = text.splitlines(keepends=True)
    before = entry.lineno - 1
    while lines[before - 1].lstrip().startswith("#"):
        before -= 1
    table.write_text("".join(lines[:before] + lines[entry.end_lineno :]), encoding="utf-8")
