"""Commands of ML-Agents' older versions: followed with a warning that shows today's spelling, or refused with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import ConfigError, RunConfig, load_config
from headrace.pipeline.command import parse, read_request
from headrace.pipeline.common.errors import CommandError

FILE = "behaviors: {Ball: {}, Bat: {keep_checkpoints: 2}}\nenv_settings: {env_path: Builds/Ball}\n"

FOLLOWED = {
    ("--load", "--train"): ("checkpoint_settings.resume", True, "--resume"),
    ("--slow",): ("engine_settings.time_scale", 1.0, "--time-scale 1"),
    ("--cpu",): ("torch_settings.device", "cpu", "--torch-device cpu"),
    ("--worker-id", "3"): ("env_settings.base_port", 5008, "--base-port, N higher"),
    ("--worker-id", "3", "--base-port", "6000"): ("env_settings.base_port", 6003, "--base-port, N higher"),
}
"""What the key is then, and what the warning shows."""

WITHOUT_EFFECT = [("--train",), ("--torch",), ("--tensorflow",), ("--num-runs", "1")]

REFUSED = {
    ("--multi-gpu",): "--torch-device cuda:1",
    ("--num-runs", "4", "--run-id", "ball"): "start each run separately, with its own --run-id",
    ("--docker-target-name", "volume"): "--results-dir",
}
CONVERTED = {"--curriculum": "curriculum", "--sampler": "sampler", "--lesson": "lesson"}
"""By option: the argument of `load_config`."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def followed(file: Path, *arguments: str) -> tuple[RunConfig, list[str]]:
    request = read_request(parse([str(file), *arguments]))
    return load_config(request.config, request.overrides, **request.old_files), list(request.warnings)


@pytest.mark.parametrize("arguments", FOLLOWED, ids=" ".join)
def test_an_old_option_works_and_the_warning_shows_the_current_form(arguments, file):
    key, value, instead = FOLLOWED[arguments]
    config, warnings = followed(file, *arguments)
    section, name = key.split(".")
    assert getattr(getattr(config, section), name) == value
    assert any(warning.startswith(arguments[0]) and instead in warning for warning in warnings)


@pytest.mark.parametrize("arguments", WITHOUT_EFFECT, ids=" ".join)
def test_an_old_option_without_effect_gives_a_warning(arguments, file):
    config, (warning,) = followed(file, *arguments)
    assert config == load_config(file)
    assert warning.startswith(arguments[0])


def test_old_options_for_checkpoints_apply_to_every_behaviour(file):
    config, (kept, made) = followed(file, "--keep-checkpoints", "7", "--save-freq", "3000")
    assert [settings.keep_checkpoints for settings in config.behaviors.values()] == [7, 7]
    assert [settings.checkpoint_interval for settings in config.behaviors.values()] == [3000, 3000]
    assert "--keep-checkpoints 7" in kept
    assert "checkpoint_interval in each behaviour" in made


def test_a_current_option_overrides_an_old_one(file):
    config, _ = followed(file, "--slow", "--time-scale", "3", "--cpu", "--torch-device", "cuda")
    assert (config.engine_settings.time_scale, config.torch_settings.device) == (3.0, "cuda")


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_an_unsupported_old_option_is_refused_with_its_replacement(arguments, file):
    with pytest.raises(CommandError) as refusal:
        read_request(parse([str(file), *arguments]))
    assert str(refusal.value).startswith(arguments[0])
    assert REFUSED[arguments] in str(refusal.value)


def test_all_refusals_are_reported_at_once(file):
    with pytest.raises(CommandError) as refusal:
        read_request(parse([str(file), "--multi-gpu", "--num-runs", "2"]))
    assert len(str(refusal.value).splitlines()) == 2


@pytest.mark.parametrize("option", CONVERTED)
def test_files_and_lessons_of_old_curricula_are_handed_to_the_conversion(option):
    request = read_request(parse([option, "1"]))
    assert {name: str(value) for name, value in request.old_files.items()} == {CONVERTED[option]: "1"}
    assert request.warnings[0].startswith(option)


def test_a_negative_lesson_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--lesson=-1"])
    assert "--lesson: expected a lesson number, counting from 0, got -1" in capsys.readouterr().err


def test_a_mistake_in_an_old_options_value_is_reported_with_it(file):
    with pytest.raises(ConfigError, match="^--save-freq 0: behaviors.Ball.checkpoint_interval: 0 is out of range"):
        followed(file, "--save-freq", "0")
