"""What each option stands for: the key of the file, and the value that it then has."""

from __future__ import annotations

import json
import re
from functools import reduce
from pathlib import Path

import pytest

from headrace.config import ConfigError, RunConfig, load_config
from headrace.pipeline.command import parse, parser, read_request

PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"
GYM = """\
environment: {kind: gymnasium, id: CartPole-v1}
behaviors:
  Pole: {trainer_type: ppo, max_steps: 5000}
"""
UNITY = """\
env_settings: {env_path: Builds/Ball, seed: 4, num_envs: 2}
engine_settings: {time_scale: 5, no_graphics: true}
default_settings: {trainer_type: ppo, keep_checkpoints: 9}
behaviors:
  Ball: {summary_freq: 100}
  Bat: {network_settings: {hidden_units: 8}}
"""
MEANINGS = {
    ("--run-id", "second"): ("checkpoint_settings.run_id", "second"),
    ("--resume",): ("checkpoint_settings.resume", True),
    ("--force",): ("checkpoint_settings.force", True),
    ("--initialize-from", "first"): ("checkpoint_settings.initialize_from", "first"),
    ("--inference",): ("checkpoint_settings.inference", True),
    ("--episodes", "40"): ("inference.episodes", 40),
    ("--video", "films"): ("inference.video", "films"),
    ("--watch",): ("inference.watch", True),
    ("--deterministic",): ("behaviors.Bat.network_settings.deterministic", True),
    ("--results-dir", "else: where"): ("checkpoint_settings.results_dir", "else: where"),
    ("--seed", "7"): ("env_settings.seed", 7),
    ("--torch-device", "cuda:1"): ("torch_settings.device", "cuda:1"),
    ("--debug",): ("debug", True),
    ("--env", "Builds/Other"): ("env_settings.env_path", "Builds/Other"),
    ("--num-envs", "3"): ("env_settings.num_envs", 3),
    ("--num-areas", "8"): ("env_settings.num_areas", 8),
    ("--base-port", "6000"): ("env_settings.base_port", 6000),
    ("--timeout-wait", "90"): ("env_settings.timeout_wait", 90),
    ("--max-lifetime-restarts", "-1"): ("env_settings.max_lifetime_restarts", -1),
    ("--restarts-rate-limit-n", "4"): ("env_settings.restarts_rate_limit_n", 4),
    ("--restarts-rate-limit-period-s", "30"): ("env_settings.restarts_rate_limit_period_s", 30),
    ("--env-args", "--level", "3", "--run-id", "x"): ("env_settings.env_args", ("--level", "3", "--run-id", "x")),
    ("--width", "640"): ("engine_settings.width", 640),
    ("--height", "480"): ("engine_settings.height", 480),
    ("--quality-level", "1"): ("engine_settings.quality_level", 1),
    ("--time-scale", "1.5"): ("engine_settings.time_scale", 1.5),
    ("--target-frame-rate", "60"): ("engine_settings.target_frame_rate", 60),
    ("--capture-frame-rate", "30"): ("engine_settings.capture_frame_rate", 30),
    ("--no-graphics",): ("engine_settings.no_graphics", True),
    ("--no-graphics-monitor",): ("engine_settings.no_graphics_monitor", True),
    ("--record",): ("record.edges", ("trainer",)),
    ("--replay", "a.stream", "b c.stream"): ("replay.streams", ("a.stream", "b c.stream")),
    ("--monitor=all:9000",): ("monitor.listen", "all:9000"),
    ("--monitor-control",): ("monitor.control", True),
    ("--set", "behaviors.Ball.max_steps=1e6"): ("behaviors.Ball.max_steps", 1_000_000),
}


def value_at(config: RunConfig, path: str) -> object:
    """Look up a dotted path, through models and maps."""
    return reduce(lambda at, key: at[key] if isinstance(at, dict) else getattr(at, key), path.split("."), config)


@pytest.fixture
def loaded(tmp_path: Path):
    """Loads a file by a command line."""

    def load(text: str, *arguments: str) -> RunConfig:
        path = tmp_path / "file.yaml"
        path.write_text(text, encoding="utf-8")
        request = read_request(parse([str(path), *arguments]))
        return load_config(request.config, request.overrides)

    return load


@pytest.mark.parametrize("arguments", MEANINGS, ids=lambda arguments: arguments[0])
def test_an_option_sets_a_key_of_the_file(arguments, loaded):
    key, value = MEANINGS[arguments]
    plain = "behaviors: {Ball: {}, Bat: {}}\nenv_settings: {env_path: Builds/Ball}\n"
    assert value_at(loaded(plain, *arguments), key) == value
    assert loaded(plain, *arguments) != loaded(plain)


def test_every_option_is_documented():
    page = PAGE.read_text(encoding="utf-8")
    options = set(re.findall(r"^ +(--[a-z-]+)", parser().format_help(), flags=re.MULTILINE))
    assert not {option for option in options if not re.search(rf"`{option}[ `\[]", page)}


@pytest.mark.parametrize("text", [GYM, UNITY])
def test_without_options_the_file_alone_counts(text, loaded, tmp_path):
    assert loaded(text) == load_config(tmp_path / "file.yaml")


def test_options_override_single_keys_of_the_file(loaded):
    config = loaded(UNITY, "--seed", "1", "--time-scale", "20")
    assert (config.env_settings.seed, config.env_settings.num_envs) == (1, 2)
    assert (config.engine_settings.time_scale, config.engine_settings.no_graphics) == (20, True)


def test_set_wins_over_other_options_and_the_later_over_the_earlier(loaded):
    config = loaded(GYM, "--set", "env_settings.seed=2", "--set", "env_settings.seed=3", "--seed", "1")
    assert config.env_settings.seed == 3


def test_the_number_of_environments_is_that_of_the_files_own_kind(loaded):
    ours = loaded(GYM.replace("id: CartPole-v1", "id: CartPole-v1, num_envs: 16"), "--num-envs", "3")
    assert ours.environment is not None
    assert ours.environment.num_envs == 3
    unity = loaded(UNITY, "--num-envs", "3")
    assert (unity.environment, unity.env_settings.num_envs) == (None, 3)


def test_deterministic_is_for_every_behaviour_listed_or_not(loaded):
    config = loaded(UNITY, "--deterministic")
    for name in ("Ball", "Bat", "Unlisted"):
        assert config.behavior_settings(name).network_settings.deterministic
    assert config.behavior_settings("Bat").network_settings.hidden_units == 8


def test_deterministic_makes_no_defaults_if_the_file_has_none(loaded):
    with pytest.raises(ConfigError, match="'Other', which is not listed"):
        loaded(GYM, "--deterministic").behavior_settings("Other")


def test_the_file_may_appear_anywhere_among_the_options(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(GYM, encoding="utf-8")
    for arguments in (["--seed", "1", str(path)], ["--resume", str(path), "--seed", "1"]):
        request = read_request(parse(arguments))
        assert (request.config, load_config(request.config, request.overrides).env_settings.seed) == (path, 1)


def test_without_a_file_any_behaviour_learns_with_the_defaults():
    request = read_request(parse(["--env", "Builds/Ball"]))
    config = load_config(request.config, request.overrides)
    assert config.behavior_settings("Whatever").trainer_type == "ppo"
    assert any("no configuration file" in warning for warning in config.warnings)


# Which of resume and initialize_from counts. ------------------------------------------------------------------------


def starting(loaded, section: str, *arguments: str) -> tuple[bool, int]:
    """Whether it resumes, and how many warnings that gives."""
    config = loaded(f"{GYM}checkpoint_settings: {{{section}}}\n", *arguments)
    found = [each for each in config.warnings if "has no effect" in each]
    return config.checkpoint_settings.resume, len(found)


def test_a_command_line_option_overrides_the_conflicting_key_of_the_file(loaded):
    assert starting(loaded, "resume: true", "--initialize-from", "other") == (False, 0)
    assert starting(loaded, "initialize_from: other", "--resume") == (True, 1)


def test_resume_overrides_if_both_are_given_in_one_place(loaded):
    assert starting(loaded, "", "--resume", "--initialize-from", "other") == (True, 1)
    assert starting(loaded, "resume: true, initialize_from: other") == (True, 1)


def test_a_json_file_with_all_options_is_read_like_other_files(loaded, tmp_path):
    whole = loaded(UNITY, "--run-id", "whole", "--no-graphics").to_plain()
    path = tmp_path / "configuration.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    again = load_config(path)
    assert again.checkpoint_settings.run_id == "whole"
    assert again.engine_settings.no_graphics
