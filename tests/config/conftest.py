"""Configurations for tests: written to a file and loaded, as users do."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config import ConfigError, RunConfig, load_config

Load = Callable[..., RunConfig]
MistakesOf = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a YAML text, with `--set` arguments if need be."""

    def load_text(text: str, *overrides: str) -> RunConfig:
        path = tmp_path / "config.yaml"
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return load_config(path, overrides)

    return load_text


@pytest.fixture
def mistakes_of(load: Load, tmp_path: Path) -> MistakesOf:
    """Load a YAML text that must be refused; its mistakes as a user sees them, without the folder."""

    def refused(text: str, *overrides: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides)
        return [line.removeprefix(f"{tmp_path}{os.sep}") for line in str(caught.value).splitlines()]

    return refused
