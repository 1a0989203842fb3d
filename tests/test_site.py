"""The site of the documentation: it can be built strictly, it asks no other host for anything, its reference is whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MODULES = ["headrace", *(f"headrace.{name}" for name in ("games", "godot", "testing", "training", "unity"))]
ASKED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\bsrc=["']?(https?:[^"' >]*)|<link[^>]*stylesheet[^>]*(https?:[^"' >]*)"""
)
FOUND_FIRST = {
    "install": "install/",
    "windows": "install/",
    "quickstart": "quickstart/",
    "quick start": "quickstart/",
    "save model": "checkpoints/",
    "load model": "predict/",
    "checkpoint": "checkpoints/",
    "resume": "checkpoints/",
    "resume training": "checkpoints/",
    "evaluate": "evaluation/",
    "frame stack": "algorithms/",
    "normalize observations": "algorithms/",
    "lstm": "algorithms/",
    "recurrent": "algorithms/",
    "ppo": "algorithms/",
    "reward scaling": "rewards/",
    "multi gpu": "growing/",
    "ray cluster": "ray/",
    "slurm": "batch-systems/",
    "hyperparameter tuning": "tuning/",
    "optuna": "tuning/",
    "learning rate schedule": "tuning/",
    "default hyperparameters": "defaults/",
    "onnx": "onnx/",
    "onnx export": "onnx/",
    "model to unity": "onnx/",
    "docker": "deployment/",
    "deploy": "deployment/",
    "kubernetes": "deployment/",
    "nginx": "deployment/",
    "rest api": "serving/",
    "unity": "unity/",
    "godot": "godot/",
    "pettingzoo": "pettingzoo/",
    "multi agent": "pettingzoo/",
    "atari": "environments/",
    "custom environment": "python/",
    "callbacks": "python/",
    "early stopping": "python/",
    "custom trainer": "extending/",
    "wandb": "extending/",
    "tensorboard": "statistics/",
    "grafana": "monitor/",
    "video": "enjoy/",
    "self play": "self-play/",
    "elo": "self-play/",
    "play against policy": "play/",
    "behavioral cloning": "imitation/",
    "imitation": "imitation/",
    "offline": "imitation/",
    "curriculum": "curricula/",
    "debug training": "diagnosis/",
    "nan": "diagnosis/",
    "out of memory": "reliability/",
    "crash": "reliability/",
    "seed": "command-line/",
    "batch size": "configuration-hyperparameters/",
}
"""The page that a search should find first, by what a user types."""
ITEM = re.compile(r" *([-*]|\d+\.) ")


def built(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """What MkDocs says of the site, which it builds into the folder `site` of this one; some settings may differ."""
    for package in ("mkdocs", "material", "mkdocstrings", "pymdownx"):
        pytest.importorskip(package, reason="needs the extra `docs`")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
    if settings:
        own = (f"hooks: [{DOCS / 'site_links.py'}]", "repo_url: https://example.org", *settings)
        (folder / "own.yml").write_text("\n".join(own), encoding="utf-8")
        command += ["--config-file", str(folder / "own.yml")]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site without the reference, in a third of the time; `make site` builds all of it."""
    folder = tmp_path_factory.mktemp("whole")
    search = re.search(r"^  - search: .*$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert search is not None
    done = built(folder, f"INHERIT: {ROOT / 'mkdocs.yml'}", f"docs_dir: {DOCS}", f"plugins:\n{search[0]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.lengthy
@pytest.mark.timeout(300)
def test_the_site_has_every_page_and_asks_no_other_host(site):
    pages = {path.parent.relative_to(site).as_posix(): path for path in site.rglob("index.html")}
    paths = [path.relative_to(DOCS) for path in DOCS.rglob("*.md")]
    wanted = {(path.parent if path.name == "README.md" else path.with_suffix("")).as_posix() for path in paths}
    assert wanted | {"changelog", "contributing", "examples"} <= set(pages)
    asked = {name: ASKED.findall(page.read_text(encoding="utf-8")) for name, page in pages.items()}
    assert not {name: hosts for name, hosts in asked.items() if hosts}
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "headrace.load_policy" in index


@pytest.mark.lengthy
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the search of the site")
def test_searches_find_the_guide_first(site):
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    command = ["node", str(Path(__file__).with_name("site_search.js")), str(worker), f"{site}/search/search_index.json"]
    done = subprocess.run([*command, *FOUND_FIRST], capture_output=True, text=True, check=True)
    found = dict(zip(FOUND_FIRST, json.loads(done.stdout), strict=True))
    assert {query: pages[0] for query, pages in found.items()} == FOUND_FIRST


@pytest.mark.lengthy
def test_a_dead_link_is_an_error_of_the_site(tmp_path):
    (tmp_path / "docs").mkdir()
    links = "[one](../nowhere.py) [another](missing.md)"
    (tmp_path / "docs" / "README.md").write_text(f"# Page\n\n{links}\n", encoding="utf-8")
    done = built(tmp_path, "site_name: small", "plugins: []", f"docs_dir: {tmp_path / 'docs'}")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert all(f"{name}" in said for name in ("nowhere.py", "missing.md"))


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_each_public_name_once(module):
    page = DOCS / "api" / f"{module.removeprefix('headrace.')}.md"
    named = re.findall(rf"^::: {re.escape(module)}\.(\w+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(named) == sorted(import_module(module).__all__)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_lists_are_lists_on_the_site_too(page):
    """Markdown for Python, unlike a forge's, wants an empty line before a list, and four blanks before what it nests."""
    fenced, before, wrong = False, "", []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            indented = len(line) - len(line.lstrip())
            wrong += [number] if indented % 4 else []
        elif not fenced and ITEM.match(line) and before.strip() and not ITEM.match(before):
            wrong += [number] if not before.startswith((" ", "#")) else []
        before = line
    assert not wrong, f"{page.name}: lines {wrong}"
