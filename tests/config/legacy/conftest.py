"""Old files for tests: converted and loaded, both ways."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from placed import without_places

from headrace.config import ConfigError, RunConfig, load_config
from headrace.config.load import convert
from headrace.config.yaml_reader import read_text

Written = Callable[..., Path]
Taken = Callable[..., "Taken_"]


@dataclass(frozen=True)
class Taken_:
    """What came of an old file."""

    config: RunConfig
    data: dict[str, Any]
    """Today's plain data, as --convert prints it."""
    text: str
    notes: list[str]
    """Warnings about old keys, without the folder: `file:line: key: …`."""


@pytest.fixture
def write(tmp_path: Path) -> Written:
    """Write a text to a file, its indentation taken away."""

    def written(text: str, name: str = "old.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return written


@pytest.fixture
def take(write: Written, tmp_path: Path) -> Taken:
    """Load an old file, and convert it; what is printed has to load to the same, and to say nothing of old keys."""

    def taken(text: str, **files: Any) -> Taken_:
        path = write(text)
        config, converted = load_config(path, **files), convert(path, **files)
        again = load_config(write(converted.text, "new.yaml"))
        assert again.model_dump() == config.model_dump()
        left = set(without_places(again.warnings))
        assert left <= set(without_places(config.warnings))
        warnings = tuple(each for each in config.warnings if "run-pipeline --convert" not in each)  # said to runs only
        assert converted.warnings == warnings
        data = read_text(converted.text, "new.yaml").data
        of_old_keys = [each for each in warnings if not left & set(without_places([each]))]
        notes = [each.removeprefix(f"{tmp_path}{os.sep}") for each in of_old_keys]
        return Taken_(config, data, converted.text, notes)

    return taken


@pytest.fixture
def refuse(write: Written, tmp_path: Path) -> Callable[..., list[str]]:
    """Load an old file that must be refused; its mistakes as a user sees them, without the folder."""

    def refused(text: str, **files: Any) -> list[str]:
        path = write(text)
        with pytest.raises(ConfigError) as caught:
            load_config(path, **files)
        with pytest.raises(ConfigError) as again:
            convert(path, **files)
        assert str(again.value) == str(caught.value)
        return [line.removeprefix(f"{tmp_path}{os.sep}") for line in str(caught.value).splitlines()]

    return refused
