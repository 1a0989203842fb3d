"""What the YAML names as `module:Class` is found, or is reported with the place where it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import load_config
from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.run import run

CLASSES = """
import gymnasium
from headrace.stages import Stage
from headrace.stages.trainer.protocol import Trainer
from headrace.stages.trainer.rewards.signal import RewardSignal
from torch import nn


class Env(gymnasium.Env):
    def __init__(self, size=1): ...


class Writer:
    def write(self, category, summaries, step): ...
    def add_property(self, category, name, value): ...
    def close(self): ...


class Sampler:
    def choose(self, candidates, random): ...


class Clip(Stage):
    def process(self, item): ...


class Learner(Trainer): ...


class Net(nn.Module): ...


class Bonus(RewardSignal):
    def __init__(self, name, settings, context, seed, scale=1.0): ...

    def compute(self, transitions): ...


NUMBER = 3
"""

FILE = """\
environment:
  kind: gymnasium
  factory: mine:Env
  wrappers:
    - use: mine:Env
behaviors:
  Ball:
    trainer_type: mine:Learner
    network_settings:
      network: mine:Net
    reward_signals:
      rnd:
        network_settings: {network: mine:Net}
      bonus: {use: mine:Bonus, with: {scale: 2}}
    self_play:
      opponents: mine:Sampler
pipeline:
  hosts: {actors: {kind: inline}, learners: {kind: inline}}
  stages:
    - use: mine:Clip
  statistics_writers:
    - {use: mine:Writer}
"""

NAMED = [
    ("factory: mine:Env", 3),
    ("- use: mine:Env", 5),
    ("trainer_type: mine:Learner", 8),
    ("      network: mine:Net", 10),
    ("network_settings: {network: mine:Net", 13),
    ("bonus: {use: mine:Bonus", 14),
    ("opponents: mine:Sampler", 16),
    ("- use: mine:Clip", 20),
    ("{use: mine:Writer", 22),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CLASSES, encoding="utf-8")
    (tmp_path / "named.yaml").write_text(FILE, encoding="utf-8")
    return tmp_path / "named.yaml"


def validated(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[str]]:
    status = main([str(path), "--validate", "--no-env-check", *options])
    told = capsys.readouterr().err.splitlines()
    return status, [line for line in told if not line.startswith("warning: ")]


def test_a_file_whose_names_are_all_found_is_valid(path, capsys):
    assert validated(path, capsys) == (0, [])


@pytest.mark.parametrize(("named", "line"), NAMED, ids=[named.strip() for named, _ in NAMED])
def test_a_name_that_is_not_in_its_module_is_reported_with_its_line(named, line, path, capsys):
    text = path.read_text(encoding="utf-8")
    assert text.splitlines()[line - 1].startswith(text[: text.index(named)].rpartition("\n")[2] + named)
    path.write_text(text.replace(named, f"{named}s", 1), encoding="utf-8")
    status, (told,) = validated(path, capsys)
    assert status == 2
    assert told.startswith(f"{path}:{line}: ")
    assert f"has no attribute '{named.rpartition(':')[2]}s'; did you mean" in told


@pytest.mark.parametrize(("named", "line"), NAMED, ids=[named.strip() for named, _ in NAMED])
def test_an_object_of_the_wrong_kind_is_reported_with_its_line(named, line, path, capsys):
    text = path.read_text(encoding="utf-8")
    start, name, _ = named.rpartition(":")
    path.write_text(text.replace(named, f"{start}{name}NUMBER", 1), encoding="utf-8")
    status, (told,) = validated(path, capsys)
    assert (status, told.startswith(f"{path}:{line}: ")) == (2, True)


def test_all_names_that_are_not_found_are_reported_at_once(path, capsys):
    path.write_text(FILE.replace("mine:", "your:"), encoding="utf-8")
    status, told = validated(path, capsys)
    assert status == 2
    assert {line.partition(": ")[0] for line in told} == {f"{path}:{line}" for _, line in NAMED}
    assert all("no module named 'your'" in line for line in told)


def test_a_name_that_was_set_is_reported_with_the_option(path, capsys):
    status, (told,) = validated(path, capsys, "--set", "behaviors.Ball.self_play.opponents=mine:Sample")
    assert status == 2
    assert told.startswith("--set behaviors.Ball.self_play.opponents=mine:Sample: ")


def test_a_name_that_is_inherited_is_reported_where_it_stands(path, capsys):
    path.write_text(
        "default_settings: {self_play: {opponents: mine:Nobody}}\nbehaviors: {Ball: {}}\n"
        "environment: {kind: builtin, id: Volley}\n",
        encoding="utf-8",
    )
    status, (told,) = validated(path, capsys)
    assert (status, told.partition(": ")[0]) == (2, f"{path}:1")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("environment: {kind: builtin, id: Voley}\n", 1, "'Voley' is not a built-in game; did you mean 'Volley'?"),
        ("environment:\n  kind: gymnasium\n  id: your:Ball-v0\n", 3, "no module named 'your'"),
        ("env_settings:\n  env_path: game\n  side_channels: [mine:Chanel]\n", 3, "has no attribute 'Chanel'"),
    ],
    ids=["a game", "a module that registers", "a side channel"],
)
def test_unknown_games_environment_modules_and_side_channels_are_reported_with_their_line(
    text, line, message, path, capsys
):
    path.write_text(f"{text}behaviors: {{Ball: {{}}}}\n", encoding="utf-8")
    status, (told,) = validated(path, capsys)
    assert (status, told.partition(": ")[0]) == (2, f"{path}:{line}")
    assert message in told


@pytest.mark.parametrize(
    ("game", "listed", "cure"),
    [
        ("Volley", "{Volley: {brain: scripted, broadcast: true}, Student: {}}", "environment.behavior: Volley"),
        ("Volley", "{Red: {}, Blue: {}}", "environment.behavior: Red"),
        ("ConnectFour", "{Red: {}, ConnectFour: {}}", "environment.behavior: ConnectFour"),
    ],
)
def test_a_game_with_an_ambiguous_behaviour_is_refused_with_the_key_to_set(game, listed, cure, path, capsys):
    path.write_text(f"environment: {{kind: builtin, id: {game}}}\nbehaviors: {listed}\n", encoding="utf-8")
    status, (told,) = validated(path, capsys)
    assert status == 2
    assert told.startswith(
        f"{path}:1: environment: needs 'behavior', the behaviour name of its agents, because 2 behaviours"
    )
    assert told.endswith(f"for example {cure}")


@pytest.mark.parametrize("section", ["{kind: builtin, id: Pursuit}", "{kind: builtin, id: Volley, behavior: Red}"])
def test_a_game_that_names_its_behaviours_or_receives_the_name_needs_nothing_else(section, path, capsys):
    path.write_text(f"environment: {section}\nbehaviors: {{Red: {{}}, Evader: {{}}}}\n", encoding="utf-8")
    assert validated(path, capsys) == (0, [])


def test_a_replay_needs_no_environment(path, capsys):
    path.write_text(
        "behaviors: {Ball: {}}\nenvironment: {kind: gymnasium, factory: your:Env}\nreplay: {streams: [a.stream]}\n",
        encoding="utf-8",
    )
    assert validated(path, capsys) == (0, [])


def test_a_run_tells_what_it_does_not_find_as_validation_does(path, capsys):
    setting = "behaviors.Ball.self_play.opponents=mine:Sample"
    _, (told,) = validated(path, capsys, "--set", setting)
    with pytest.raises(RunError) as caught:
        run(load_config(path, [setting]))
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("environment", "place", "message"),
    [
        ("{kind: gymnasium,\n  factory: mine:Nope}", 2, "module 'mine' .* has no attribute 'Nope'"),
        ("{kind: gymnasium, factory: mine:Env,\n  options: {sise: 2}}", 2, "does not accept {'sise': 2}"),
    ],
    ids=["the factory", "its options"],
)
def test_an_environment_that_an_actor_can_not_make_is_reported_with_its_line(
    environment, place, message, path, tmp_path
):
    path.write_text(
        f"environment: {environment}\nbehaviors: {{Ball: {{}}}}\n"
        f"pipeline: {{hosts: {{actors: {{kind: inline}}, learners: {{kind: inline}}}}}}\n"
        f"checkpoint_settings: {{results_dir: '{tmp_path}/results'}}\n",
        encoding="utf-8",
    )
    with pytest.raises(RunFailed, match=f"^{path}:{place}: .*{message}"):
        run(load_config(path))
