"""Writes docs/environments.md from what tests/zoo/packages holds: `python tests/zoo_page.py > docs/environments.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from zoo_packages import Kept, Package, packages

INTRODUCTION = """\
# Tested environments from other packages

<!-- Written by tests/zoo_page.py; change tests/zoo/packages instead. -->

The tests train on {count} environments of {tried} third-party packages. Each environment takes six steps: `--validate`; training with two updates;
`--resume` for one more; `--inference` for three episodes; a film of three episodes; and [`predict`](predict.md) for the environment created without Headrace, which
must accept the action. {whole} pass all six, {unfilmed} pass all but the film, as they can't render, and {others} are refused at another step, with the
message and reason [below](#refused). If `--validate` refuses an environment, training refuses it with the same message.

The files that the first table links to contain the `environment` section of a YAML, including wrappers, and the tested versions. They are tests:

<!-- not run: installs packages -->
```sh
.venv/bin/pip install -c constraints.txt -e '.[dev,zoo]'
MUJOCO_GL=egl .venv/bin/python -m pytest tests/zoo -m slow -n 2   # skips packages that are not installed
```

The extra `zoo` contains the packages that are compatible with `constraints.txt`; the others, which need a separate virtual environment, are [listed](#alone). The first environment
of each package runs through the command with its hosts in processes, all others in one process each.
"""


def page() -> str:
    """Return the whole page."""
    tried = [package for package in packages() if package.environments]
    kept = [one for package in tried for one in package.environments]
    whole, unfilmed = (sum(list(one.refused) == steps for one in kept) for steps in ([], ["film"]))
    others = len(kept) - whole - unfilmed
    head = INTRODUCTION.format(count=len(kept), tried=len(tried), whole=whole, unfilmed=unfilmed, others=others)
    sections = [head, *(_section(*section) for section in _sections(tried))]
    return "\n".join(sections)


def _sections(tried: list[Package]) -> Iterator[tuple[str, str, list[tuple[str, ...]]]]:
    yield (
        "What works",
        "| package | version | all six steps | all but the film |",
        [(_linked(p), p.version, _names(p, []), _names(p, ["film"])) for p in tried],
    )
    yield (
        "Refused",
        "| package | environments | step | message | reason |",
        [
            (p.name, ", ".join(names), step, f"`{words}`", why)
            for p in tried
            for (step, words, why), names in _refusals(p).items()
        ],
    )
    yield (
        "Alone",
        "| package | versions | why it is not in the extra |",
        [(_linked(p), ", ".join(map(str, p.pins)), p.alone) for p in tried if p.alone],
    )
    yield "Not tried", "| package | why |", [(p.name, p.absent) for p in packages() if p.absent]


def _refusals(package: Package) -> dict[tuple[str, str, str], list[str]]:
    """The environments by step, message and reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in package.environments:
        for step, words in one.refused.items():
            found.setdefault((step, words, one.why), []).append(_shown(one))
    return found


def _section(title: str, head: str, rows: list[tuple[str, ...]]) -> str:
    lines = [f"## {title}", "", head, "|---" * (head.count("|") - 1) + "|"]
    return "\n".join(
        [*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows), ""]
    )


def _linked(package: Package) -> str:
    return f"[{package.name}](../tests/zoo/packages/{package.name}.yaml)"


def _names(package: Package, refused: list[str]) -> str:
    return ", ".join(_shown(one) for one in package.environments if list(one.refused) == refused)


def _shown(one: Kept) -> str:
    return f"`{one.name}`" if one.name in (one.environment.get("id"), one.environment.get("factory")) else one.name


if __name__ == "__main__":
    sys.stdout.write(page())
