"""Which argument is the configuration file, and which, in old commands, the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.load import Override
from headrace.pipeline.command import parse, read_request
from headrace.pipeline.command.parser import classify_paths, is_environment
from headrace.pipeline.common.errors import CommandError


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    """A folder with a program, a build for Linux, one for macOS, a script and a text."""
    monkeypatch.chdir(tmp_path)
    Path("program").write_bytes(b"\x7fELF\x02\x01")
    Path("Ball.x86_64").write_bytes(b"\x7fELF\x02\x01")
    Path("Bat.app").mkdir()
    Path("start").write_text("#!/bin/sh\n", encoding="utf-8")
    Path("settings").write_text("behaviors: {}\n", encoding="utf-8")


@pytest.mark.parametrize(
    "argument", ["Builds/Ball.exe", "Bat.app", "Bat", "Ball.x86_64", "Ball", "program", "start", "gone.x86"]
)
def test_an_executable_is_known_by_its_name_or_by_what_it_holds(argument):
    assert is_environment(argument)


@pytest.mark.parametrize("argument", ["trainer.yaml", "gone.yml", "whole.json", "settings", "nowhere"])
def test_anything_else_is_a_configuration_file(argument):
    assert not is_environment(argument)


@pytest.mark.parametrize("arguments", [["trainer.yaml", "Ball"], ["Ball", "trainer.yaml"]])
def test_both_may_be_given_in_either_order(arguments):
    assert classify_paths(arguments, None) == (Path("trainer.yaml"), "Ball")


def test_each_may_be_given_alone_or_not_at_all():
    assert classify_paths(["Ball"], None) == (None, "Ball")
    assert classify_paths(["settings"], "Ball") == (Path("settings"), None)
    assert classify_paths([], None) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "env", "told"),
    [
        (["a.yaml", "b.yaml"], None, "expected one configuration file, got 2: a.yaml, b.yaml"),
        (["Ball", "Bat"], None, "more than one environment was given: Ball, Bat"),
        (["a.yaml", "Ball"], "Bat", "more than one environment was given: Ball, --env Bat"),
    ],
)
def test_more_than_one_of_a_kind_is_refused(arguments, env, told):
    with pytest.raises(CommandError) as refusal:
        classify_paths(arguments, env)
    assert told in str(refusal.value)


@pytest.mark.parametrize("name", ["trainer_config.yaml", "builds/trainer_config.yaml"])
def test_the_configuration_is_found_by_the_name_that_old_commands_knew(name):
    (here := Path(name)).parent.mkdir(exist_ok=True)
    here.write_text("default: {}\n", encoding="utf-8")
    Path("builds").mkdir(exist_ok=True)
    Path("builds/Ball.x86_64").write_bytes(b"\x7fELF")
    request = read_request(parse(["builds/Ball", "--train"]))
    assert request.config == here
    assert any(
        f"found {name} by its name, as Headrace does here; write {name} --env builds/Ball" in w
        for w in request.warnings
    )


def test_nothing_is_found_by_its_name_if_a_configuration_is_given_or_the_command_is_of_today():
    Path("trainer_config.yaml").write_text("default: {}\n", encoding="utf-8")
    assert read_request(parse(["Ball", "settings"])).config == Path("settings")
    assert read_request(parse(["--env", "Ball"])).config is None
    assert read_request(parse([])).config is None


def test_an_environment_as_an_argument_is_taken_for_env_with_a_warning():
    request = read_request(parse(["Ball", "settings", "--train"]))
    assert (request.config, request.env) == (Path("settings"), "Ball")
    (override,) = request.overrides
    assert isinstance(override, Override)
    assert (override.path, override.value) == (("env_settings", "env_path"), "Ball")
    assert any("write --env Ball" in warning for warning in request.warnings)
