"""The configuration file among the command's arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline.command import parse, read_request
from headrace.pipeline.common.errors import CommandError


def test_the_argument_is_the_configuration_file():
    assert read_request(parse(["--seed", "1", "trainer.yaml"])).config == Path("trainer.yaml")
    assert read_request(parse([])).config is None


def test_an_environment_next_to_the_file_is_refused_with_its_option():
    with pytest.raises(CommandError, match=r"got 2: trainer.yaml, Ball; give an environment with --env, and write"):
        read_request(parse(["trainer.yaml", "Ball"]))
