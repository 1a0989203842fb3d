"""`--validate` tries a small run: it reports what is wrong, its warnings and what it leaves out, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from open_runs import GAME

from headrace.config import RunConfig
from headrace.pipeline.cli import main
from headrace.pipeline.run import run
from headrace.pipeline.trial import ROWS, left_out, smaller, try_run
from headrace.stop_requests import REQUESTS

ENVIRONMENTS = """
import ctypes, os, subprocess, threading

import gymnasium, numpy as np


class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        open("child", "w").write(str(os.getpid()))
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        return self.observation_space.sample() * 0, 0.0, True, False, {}


class Hanging(Base):
    def step(self, action):
        threading.Event().wait()


class Crashing(Base):
    def step(self, action):
        ctypes.string_at(0)


class Asking(Base):
    def step(self, action):
        input("a question?")


class Unrepeatable(Base):
    def step(self, action):
        return np.random.default_rng().uniform(-1, 1, (1,)).astype(np.float32), 0.0, False, False, {}


class Starting(Base):
    def step(self, action):
        game = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open("part", "w").write(f"{os.getpid()} {game.pid}")
        os.rename("part", "pids")
        threading.Event().wait()
"""
INLINE = {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}
FILE = """\
env_settings: {timeout_wait: 4}
environment:
  kind: gymnasium
  factory: tried:Base
behaviors:
  Ball: {trainer_type: ppo}
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tried.py").write_text(ENVIRONMENTS, encoding="utf-8")
    (tmp_path / "file.yaml").write_text(FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return tmp_path / "file.yaml"


def validated(path: Path, *overrides: str) -> int:
    return main([str(path), "--validate", *(word for each in overrides for word in ("--set", each))])


def nothing_left(path: Path) -> bool:
    return not list((path.parent / "scratch").iterdir()) and not (path.parent / "results").exists()


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Hanging", ("silent for", "env_settings.timeout_wait", "tried.py", "in step", "actor-0 was killed")),
        pytest.param("Crashing", ("Segmentation fault", "tried.py", "actor-0 was killed"), marks=pytest.mark.slow),
        pytest.param("Asking", ("file.yaml:2: ", "EOFError", "tried.py:", "in step"), marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_ends_or_hangs_is_named_with_its_place(name, words, path, capfd):
    assert validated(path, f"environment.factory=tried:{name}") == 2
    said = capfd.readouterr().err
    assert all(each in said for each in words), said
    assert nothing_left(path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((path.parent / "child").read_text(encoding="utf-8")), 0)


@pytest.mark.lengthy
def test_a_run_that_passes_is_described_after_its_warnings_and_what_was_not_tried(path, capfd):
    stranger = "behaviors.Stranger={trainer_type: ppo}"
    writer = "pipeline.statistics_writers=[csv]"
    assert validated(path, "environment.factory=tried:Unrepeatable", "environment.behavior=Ball", stranger, writer) == 0
    said = capfd.readouterr()
    assert "[WARNING] Listed under behaviors, but never seen in the environment: Stranger (seen: Ball)." in said.err
    assert "warning: not tried: statistics writers (pipeline.statistics_writers)" in said.err
    assert "Gymnasium's own checker (gymnasium.utils.env_checker) says: " in said.err
    assert re.match(r"tried on a small scale: Ball: [1-9]\d* steps, updates: [1-9]", said.out)
    assert "behavior Ball: actors" in said.out
    assert nothing_left(path)


@pytest.mark.lengthy
def test_a_new_run_is_tried_with_the_policies_that_it_starts_from_and_a_played_run_with_its_film(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    small = {
        "trainer_type": "ppo",
        "max_steps": 64,
        "hyperparameters": {"buffer_size": 32, "batch_size": 32},
        "checkpoint_interval": 32,
    }
    plain: dict[str, Any] = {
        "environment": {"kind": "gymnasium", "id": "CartPole-v1"},
        "behaviors": {"B": small},
        "checkpoint_settings": {"results_dir": str(tmp_path / "results"), "run_id": "trained"},
        "pipeline": {"hosts": INLINE},
    }
    run(RunConfig.from_plain(plain))
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    started = {**plain["checkpoint_settings"], "run_id": "started", "initialize_from": "trained"}
    assert try_run(RunConfig.from_plain({**plain, "checkpoint_settings": started})) == ([], [])
    played = {**plain["checkpoint_settings"], "inference": True}
    films = {"video": str(tmp_path / "films")}
    assert try_run(RunConfig.from_plain({**plain, "checkpoint_settings": played, "inference": films})) == ([], [])
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


@pytest.mark.lengthy
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no sweeper ends what has left its session")
@pytest.mark.parametrize("name", ["SIGKILL", *(pytest.param(each.name, marks=pytest.mark.slow) for each in REQUESTS)])
def test_a_trial_leaves_nothing_when_the_command_is_ended(path, name):
    words = [sys.executable, "-c", "from headrace.pipeline.cli import main; main()", str(path), "--validate"]
    words += ["--set", "environment.factory=tried:Starting", "--set", "env_settings.timeout_wait=600"]
    environment = {**os.environ, "TMPDIR": str(path.parent / "scratch")}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE) as command:
        while not (path.parent / "pids").exists():
            assert command.poll() is None
            time.sleep(0.01)
        command.send_signal(signal.Signals[name])
        said = command.communicate(timeout=60)[1].decode()
    assert command.returncode == (-signal.SIGKILL if name == "SIGKILL" else 128 + signal.Signals[name]), said
    pids = [int(pid) for pid in (path.parent / "pids").read_text().split()]
    deadline = time.monotonic() + 60
    while any(map(lives, pids)) or not nothing_left(path):
        assert time.monotonic() < deadline, f"{pids}, {[*(path.parent / 'scratch').iterdir()]}"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


SMALL_RUNS: list[dict[str, Any]] = [
    {"trainer_type": "ppo", "self_play": {"save_steps": 10_000}},
    {"trainer_type": "ppo", "reward_signals": {"extrinsic": {}, "curiosity": {}, "rnd": {}}},
    {"trainer_type": "ppo", "network_settings": {"memory": {"memory_size": 8, "sequence_length": 16}}},
    {"trainer_type": "ppo", "stop_when": {"mean_reward": -1}, "even_checkpoints": True},
    {"trainer_type": "sac"},
    {"trainer_type": "sac", "hyperparameters": {"update_at": "episode_end", "buffer_init_steps": 10_000}},
    {"trainer_type": "poca"},
    {"trainer_type": "impala", "hyperparameters": {"batch_size_from_replay": 8}},
]


@pytest.mark.lengthy
@pytest.mark.parametrize("behavior", SMALL_RUNS, ids=str)
def test_a_small_run_makes_an_update(behavior, tmp_path):
    plain = {"environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 2}, "behaviors": {"B": behavior}}
    small, rows = smaller(RunConfig.from_plain(plain), str(tmp_path))
    result = run(small.rewritten(small.to_plain() | {"pipeline": {"hosts": INLINE}})).behaviors["B"]
    assert rows == ROWS
    assert result.updates > 0
    assert result.step >= rows


@pytest.mark.lengthy
def test_all_learners_of_a_league_make_an_update(tmp_path):
    learners = {"main": {"actors": 3}, "rival": {"matches": [{"match": "newest", "against": "main"}]}}
    plain: dict[str, Any] = {
        "environment": {"kind": "builtin", "id": "RockPaperScissors"},
        "behaviors": {"B": {"trainer_type": "ppo", "league": {"learners": learners}}},
    }
    small, _ = smaller(RunConfig.from_plain(plain), str(tmp_path))
    hosts = {
        "actors": {"kind": "inline", "replicas": small.pipeline.hosts.actors.replicas},
        "learners": {"kind": "inline"},
    }
    result = run(small.rewritten(small.to_plain() | {"pipeline": {"hosts": hosts}}))
    assert {name: behavior.updates > 0 for name, behavior in result.behaviors.items()} == {
        "B.main": True,
        "B.rival": True,
    }


def test_the_check_can_be_skipped(path, capfd):
    assert main([str(path), "--validate", "--no-env-check", "--set", "environment.factory=tried:Hanging"]) == 0
    assert not (path.parent / "child").exists()


NOBODY = {"behaviors": {"B": {}}}
BUILD = {"env_path": sys.executable}
NOT_TRIED: list[tuple[Any, str]] = [
    ({}, "the environment, which waits for the Unity Editor; so the network and the update were not tried either"),
    ({"environment": {"kind": "godot"}}, "the environment, which waits for Godot's editor"),
    ({"environment": {"kind": "open_protocol"}}, "the environment, which waits for the game"),
    ({"env_settings": BUILD}, "the game .*, which opens a window, because this machine has no display .*--no-graphics"),
]


@pytest.mark.parametrize(("plain", "words"), NOT_TRIED, ids=str)
def test_an_environment_that_can_not_be_tried_is_reported(plain, words, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    errors, (told,) = try_run(RunConfig.from_plain({**NOBODY, **plain}))
    assert errors == []
    assert re.fullmatch(f"not tried: {words}.*", told)


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"env_settings": {"env_path": "no/such"}}, "no executable at no/such"),
        (
            {"environment": {"kind": "gymnasium", "id": "CartPole-v1", "options": {"render_mode": "human"}}},
            "render_mode human opens a window, but this machine has no display",
        ),
        (
            {
                "environment": {"kind": "builtin", "id": "Volley"},
                "checkpoint_settings": {"inference": True},
                "inference": {"watch": True},
            },
            "--watch: the built-in games have no window",
        ),
    ],
    ids=str,
)
def test_a_trial_refuses_what_a_run_refuses_before_its_start(plain, words, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    (told,), warnings = try_run(RunConfig.from_plain({**NOBODY, **plain}))
    assert words in told
    assert warnings == []


def test_parts_of_a_run_that_the_trial_leaves_out_are_reported():
    plain: dict[str, Any] = {
        "behaviors": {"B": {}},
        "environment": {"kind": "gymnasium", "factory": "a:b"},
        "evaluation": {"every": 1000},
        "record": {},
        "checkpoint_settings": {"resume": True},
        "pipeline": {"hosts": {"learners": {"replicas": 2}, "actors": {"kind": "ray"}}, "statistics_writers": ["csv"]},
    }
    assert [*left_out(RunConfig.from_plain(plain))] == [
        "not tried: the checkpoint that the run resumes from (checkpoint_settings.resume), several replicas of a learner "
        "(pipeline.hosts.learners.replicas), hosts on Ray (pipeline.hosts), statistics writers "
        "(pipeline.statistics_writers), evaluation, recording (record)"
    ]
    played = {"behaviors": {"B": {"brain": "player"}}, "environment": {"kind": "gymnasium", "factory": "a:b"}}
    assert [*left_out(RunConfig.from_plain(played))] == [
        "not tried: the person who plays (behaviors.B.brain), replaced by random actions"
    ]


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("arguments", "words"),
    [pytest.param([], None, marks=pytest.mark.slow), (["--fault=reward"], "reward")],
    ids=["as it should be", "a wrong reward"],
)
def test_a_game_of_an_engine_is_tried_on_a_free_port(arguments, words, tmp_path):
    plain: dict[str, Any] = {
        "environment": {"kind": "open_protocol"},
        "env_settings": {"env_path": sys.executable, "env_args": [str(GAME), "--agents=4", *arguments]},
        "behaviors": {"Agent": {"network_settings": {"hidden_units": 8}}},
        "checkpoint_settings": {"results_dir": str(tmp_path)},
    }
    errors, warnings = try_run(RunConfig.from_plain(plain))
    assert [words in error for error in errors] == [True] * (words is not None), errors
    assert warnings == []
