"""Files of each version of ML-Agents, as they are found: they load, and what --convert prints of them is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from placed import without_places
from sample_files import BESIDE, FILES, SAMPLES, name_of

from headrace.config import BCHyperparameters, PPOHyperparameters, RunConfig, SACHyperparameters, load_config
from headrace.config.load import convert
from headrace.config.yaml_reader import read_file

CURRENT = ("everything.yaml", "configuration.yaml")
CASES: list[tuple[Path, dict[str, Any]]] = [
    *((path, {}) for path in FILES),
    *((SAMPLES / name, files) for name, files in BESIDE),
]
IDS = [f"{name_of(path)} {' '.join(files)}".strip() for path, files in CASES]


def settings(config: RunConfig) -> dict[str, Any]:
    return config.model_dump()


@pytest.mark.parametrize(("path", "files"), CASES, ids=IDS)
def test_a_converted_file_loads_to_the_same_settings_without_warnings_of_old_keys(
    path: Path, files: dict[str, Any], tmp_path: Path
):
    converted = convert(path, **files)
    print(converted.text)  # shown when it fails: this is the conversion that users see
    new = tmp_path / "new.yaml"
    new.write_text(converted.text, encoding="utf-8")
    config, again = load_config(path, **files), load_config(new)
    assert settings(again) == settings(config)
    assert converted.warnings == tuple(each for each in config.warnings if "run-pipeline --convert" not in each)
    left = set(without_places(again.warnings))
    of_old_keys = [each for each in config.warnings if not left & set(without_places([each]))]
    assert left <= set(without_places(config.warnings))
    assert bool(of_old_keys) == (bool(files) or path.name not in CURRENT)
    places = [str(path), *map(str, files.values())]
    assert all(any(each.startswith(place) for place in places) for each in of_old_keys), "each says where it stands"
    assert convert(new).text == converted.text, "and it needs no conversion"


@pytest.mark.parametrize(("path", "files"), CASES, ids=IDS)
def test_a_converted_file_reads_the_same_in_pyyaml(path: Path, files: dict[str, Any], tmp_path: Path):
    new = tmp_path / "new.yaml"
    new.write_text(convert(path, **files).text, encoding="utf-8")
    if path.name not in CURRENT:  # those are printed as they stand
        assert yaml.safe_load(new.read_text(encoding="utf-8")) == read_file(new).data


def sample(name: str, **files: Any) -> RunConfig:
    return load_config(SAMPLES / name, **files)


def test_the_oldest_ppo_files_mean_what_they_meant():
    config = sample("v0.8/trainer_config.yaml")
    ball, maze, visual = (config.behaviors[name] for name in ("BallBrain", "MazeBrain", "VisualMazeBrain"))
    assert (ball.time_horizon, ball.network_settings.normalize, ball.signals["extrinsic"].gamma) == (900, True, 0.993)
    assert list(maze.signals) == ["extrinsic", "curiosity"]
    assert (maze.network_settings.memory.sequence_length, maze.network_settings.memory.memory_size) == (24, 256)
    assert visual == maze


def test_imitation_means_what_it_meant():
    offline = sample("v0.8/offline_bc_config.yaml").behaviors["CorridorBrain"]
    assert isinstance(offline.hyperparameters, BCHyperparameters)
    assert offline.hyperparameters.demo_path == "./Demonstrations/Corridor.demo"
    assert offline.max_steps == 30000 * 32 * 4
    online = sample("v0.8/online_bc_config.yaml").behaviors
    student = online["StudentBrain"].hyperparameters
    assert isinstance(student, BCHyperparameters)
    assert student.teacher == "TeacherBrain"
    assert (online["TeacherBrain"].trainer_type, online["TeacherBrain"].max_steps) == ("ppo", 90000)


def test_sac_means_what_it_meant():
    behaviors = sample("v0.11/sac_trainer_config.yaml").behaviors
    walker, pyramids, hallway = (behaviors[f"{name}Learning"] for name in ("Walker", "Pyramids", "Hallway"))
    assert isinstance(walker.hyperparameters, SACHyperparameters)
    assert (walker.hyperparameters.steps_per_update, walker.hyperparameters.learning_rate_schedule) == (1.5, "linear")
    assert isinstance(pyramids.hyperparameters, SACHyperparameters)
    assert pyramids.hyperparameters.reward_signal_steps_per_update == 0.5
    assert pyramids.learned_signals["gail"].network_settings.hidden_units == 64
    assert (hallway.network_settings.memory.sequence_length, pyramids.network_settings.memory) == (28, None)


def test_self_play_means_what_it_meant():
    behaviors = sample("v0.14/self_play.yaml").behaviors
    tennis, soccer, pong = (behaviors[name].self_play for name in ("Tennis", "SoccerTwos", "Pong"))
    assert (tennis.swap_steps, tennis.play_against_latest_model_ratio, tennis.window) == (48000, 0.45, 12)
    assert (soccer.swap_steps, soccer.play_against_latest_model_ratio, soccer.window) == (20000, 0.55, 10)
    assert (pong.swap_steps, pong.save_steps, pong.window, pong.team_change) == (20000, 25000, 8, 125000)


def test_sections_of_several_trainers_share_a_default():
    config = sample("v0.15/mixed.yaml", curriculum=SAMPLES / "v0.15" / "wall_jump.yaml")
    small, big, worm = (config.behaviors[name] for name in ("SmallWallJump", "BigWallJump", "WormStatic"))
    assert [each.trainer_type for each in (small, big, worm)] == ["ppo", "sac", "ppo"]
    assert [list(each.signals) for each in (small, big)] == [["extrinsic", "curiosity"], ["extrinsic"]]
    assert isinstance(big.hyperparameters, SACHyperparameters)
    assert big.hyperparameters.steps_per_update == 0.5
    assert worm.network_settings.memory.memory_size == 128
    assert list(config.environment_parameters) == ["big_wall_min_height", "big_wall_max_height", "small_wall_height"]


def test_keys_of_the_versions_between_mean_what_they_meant():
    strikers = sample("v0.16/StrikersVsGoalie.yaml")
    assert strikers.behaviors["Striker"].self_play.swap_steps == 3900
    assert list(strikers.environment_parameters) == ["goal_width", "ball_scale"]
    walker = sample("v0.16/Walker_sac.yaml").behaviors["Walker"].hyperparameters
    assert isinstance(walker, SACHyperparameters)
    assert (walker.steps_per_update, walker.reward_signal_steps_per_update) == (30, 60)
    ball = sample("v0.18/3DBall_randomize.yaml")
    assert (ball.behaviors["3DBall"].checkpoint_interval, ball.behaviors["3DBall"].keep_checkpoints) == (40000, 3)


def test_all_keys_of_today_are_taken():
    config = sample("v1.1/everything.yaml")
    walker = config.behaviors["Walker"]
    assert isinstance(walker.hyperparameters, SACHyperparameters | PPOHyperparameters)
    assert (walker.max_steps, walker.hyperparameters.batch_size, walker.network_settings.hidden_units) == (
        500000,
        250,
        200,
    )
    assert list(config.behavior_settings("Unlisted").signals) == ["extrinsic"]
    assert not any("does not use" in warning for warning in config.warnings)
