"""Hooks of MkDocs: pages from outside of docs/, and links that lead out of it, as the site has them."""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ADOPTED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
    "config/schema.json": "schema.json",
    "pipeline/monitor/page/icon.svg": "icon.svg",
}
"""Files elsewhere in the repository that the site includes: their paths, and their names in docs/."""
KEYWORDS = {
    "api/headrace": "api reference",
    "algorithms": "ppo sac impala poca recurrent lstm memory action mask frame stack normalize observations",
    "batch-systems": "batch systems slurm",
    "checkpoints": "checkpoint save model resume training",
    "command-line": "seed options arguments",
    "configuration-hyperparameters": "batch size",
    "curricula": "curriculum lessons randomization",
    "deployment": "deploy docker kubernetes nginx",
    "diagnosis": "debug training nan",
    "environments": "atari mujoco minigrid",
    "evaluation": "evaluate",
    "extending": "custom trainer wandb mlflow",
    "growing": "multi gpu scaling",
    "imitation": "imitation behavioral cloning offline demonstrations",
    "install": "install pip cuda gpu windows",
    "monitor": "grafana prometheus dashboard",
    "onnx": "export model unity onnx",
    "pettingzoo": "multi agent pettingzoo",
    "play": "play against human",
    "predict": "load model inference",
    "python": "custom own environment gymnasium gym callbacks early stopping jupyter notebook",
    "quickstart": "quickstart quick start",
    "ray": "ray cluster",
    "reliability": "crash kill out memory",
    "rewards": "reward scaling curiosity rnd gail",
    "self-play": "self play elo",
    "serving": "serve rest http grpc",
    "statistics": "tensorboard metrics",
    "tuning": "hyperparameter tuning optuna learning rate schedule entropy",
    "unity": "unity",
}
"""Words that users search for, by the page that explains them: for these, the page comes first."""
BOOSTS = {"api/": 0.2, "decisions/": 0.1, "changelog": 0.1, "contributing": 0.2, "code-map": 0.2, "trainer-parts": 0.2}
"""Factors on the rank of pages in the search, by the beginning of their names: guides come first."""
SOURCES = {page: source for source, page in ADOPTED.items()}
FENCED = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")
log = logging.getLogger("mkdocs.hooks.site_links")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let an entry of the navigation that names a folder have the folder's pages, its index first."""
    config.nav = [expanded(entry, Path(config.docs_dir)) for entry in config.nav or []]
    return config


def expanded(entry: Any, docs: Path) -> Any:
    """Return an entry of the navigation with folders replaced by lists of their pages."""
    if isinstance(entry, dict):
        return {title: expanded(inner, docs) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [expanded(inner, docs) for inner in entry]
    if entry.endswith("/"):
        pages = sorted((docs / entry).glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
        return [path.relative_to(docs).as_posix() for path in pages]
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from elsewhere in the repository."""
    for source, page in ADOPTED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with links that lead from the page in the site to where those of the repository lead."""
    uri = page.file.src_uri
    page.meta["search"] = {"boost": next((boost for start, boost in BOOSTS.items() if uri.startswith(start)), 1)}
    page.meta["tags"] = KEYWORDS.get(uri.removesuffix(".md"), "").split()
    source = SOURCES.get(uri, f"docs/{uri}")

    def link(match: re.Match[str]) -> str:
        before, target, anchor, after = match[1], match[2], match[3] or "", match[4]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", source, target)
        name = ADOPTED.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if name is None:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"{before}{config.repo_url}/{kind}/main/{path}{anchor}{after}"
        return f"{before}{posixpath.relpath(name, posixpath.dirname(uri) or '.')}{anchor}{after}"

    pieces = FENCED.split(markdown)
    return "".join(piece if FENCED.fullmatch(piece) else LINK.sub(link, piece) for piece in pieces)
