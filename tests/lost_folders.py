"""Ways in which a run may lose its folder."""

from __future__ import annotations

import shutil
from pathlib import Path


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def move(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def move_the_parent(folder: Path) -> None:
    move(folder.parent)


def replace_by_a_copy(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
