"""Whatever an environment does in its trial, `--validate` gives one message for it and leaves nothing behind."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from open_runs import GAME

from headrace.config import RunConfig
from headrace.pipeline.cli import main
from headrace.pipeline.main.subprocess_call import NoAnswer
from headrace.pipeline.main.trial import _left_out, try_run, without_answer

ENVIRONMENTS = """
import ctypes, os, threading

import gymnasium


class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        open("child", "w").write(str(os.getpid()))
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        print("garbage" * 1000)
        os.write(2, bytes([255, 0]))
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
"""
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


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Hanging", ("in 4 seconds", "tried.py:", "in step", "timeout_wait")),
        pytest.param(
            "Crashing", ("crashed with SIGSEGV", "tried.py:", "in step", "--no-env-check"), marks=pytest.mark.slow
        ),
        pytest.param("Asking", ("EOFError", "tried.py:", "in step"), marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_ends_or_hangs_is_one_message_with_its_place(name, words, path, capfd):
    assert main([str(path), "--validate", "--set", f"environment.factory=tried:{name}"]) == 2
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith("--set environment.factory" if "--set" in told else f"{path}:")
    assert all(each in told for each in words), told
    assert not list((path.parent / "scratch").iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int((path.parent / "child").read_text(encoding="utf-8")), 0)


@pytest.mark.lengthy
def test_a_process_that_can_not_start_to_try_it_shows_why(path, capfd, monkeypatch):
    (path.parent / "modules").mkdir()
    (path.parent / "modules" / "msgpack.py").write_text("raise ImportError('DLL load failed')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(path.parent / "modules"))
    assert main([str(path), "--validate"]) == 2
    told = capfd.readouterr().err
    assert "ended with status 1:\nTraceback (most recent call last)" in told
    assert told.count("ImportError: DLL load failed") == 1


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
    (
        {"environment": {"kind": "godot"}, "env_settings": BUILD, "engine_settings": {"no_graphics": False}},
        "the game .*, which opens a window",
    ),
]


@pytest.mark.parametrize(("plain", "words"), NOT_TRIED, ids=str)
def test_an_environment_that_can_not_be_tried_is_said(plain, words, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    errors, (told,) = try_run(RunConfig.from_plain({**NOBODY, **plain}))
    assert errors == []
    assert re.fullmatch(f"not tried: {words}.*", told)


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"env_settings": {"env_path": "no/such"}}, "no Unity executable at no/such"),
        ({"environment": {"kind": "godot"}, "env_settings": {"env_path": "no/such"}}, "no/such"),
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
def test_what_a_run_refuses_before_it_starts_is_refused(plain, words, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    (told,), warnings = try_run(RunConfig.from_plain({**NOBODY, **plain}))
    assert words in told
    assert warnings == []


def test_parts_of_a_run_that_the_trial_does_without_are_said():
    plain = {
        "behaviors": {"B": {}},
        "environment": {"kind": "gymnasium", "factory": "a:b"},
        "evaluation": {"every": 1000},
        "record": {},
        "checkpoint_settings": {"resume": True},
        "pipeline": {
            "hosts": {"learners": {"replicas": 2}, "actors": {"kind": "ray"}},
            "statistics_writers": ["csv"],
        },
    }
    assert [*_left_out(RunConfig.from_plain(plain))] == [
        "the checkpoint that the run resumes from (checkpoint_settings.resume)",
        "running 2 replicas of a learner together (pipeline.hosts.learners.replicas)",
        "hosts on Ray (pipeline.hosts)",
        "statistics writers (pipeline.statistics_writers)",
        "evaluation",
        "recording (record)",
    ]
    played = {"behaviors": {"B": {"brain": "player"}}, "environment": {"kind": "gymnasium", "factory": "a:b"}}
    assert [*_left_out(RunConfig.from_plain(played))] == [
        "the person who plays (behaviors.B.brain), replaced by random actions"
    ]


STACK = """Timeout (0:01:00)!
Thread 0x01 (most recent call first):
  File "/lib/torch/nn/init.py", line 83 in _no_grad_normal_
  File "/our/headrace/stages/{room}/some.py", line 1 in some
  File "/our/headrace/stages/environments/stage.py", line 2 in decide
"""


@pytest.mark.parametrize(("room", "serious"), [("trainer", False), ("policy", False), ("environments", True)])
def test_networks_that_take_long_are_no_environment_that_hangs(room, serious):
    told = without_answer(NoAnswer(None, STACK.format(room=room)), 60.0, RunConfig.from_plain(NOBODY))
    assert told["serious"] is serious
    assert ("networks of this size take more than 60 s" in told["text"]) is not serious


@pytest.mark.parametrize(("status", "words"), [(7, "status 7"), (-11, "crashed with SIGSEGV")])
def test_an_environment_that_ends_its_process_is_told_with_the_status_and_the_place(status, words):
    told = without_answer(NoAnswer(status, STACK.format(room="environments")), 60.0, RunConfig.from_plain(NOBODY))
    assert told["serious"]
    assert told["key"] == ("environment",)
    assert all(
        each in told["text"] for each in (words, "init.py:83, in _no_grad", "must raise an error", "--no-env-check")
    )


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("arguments", "words"),
    [pytest.param([], None, marks=pytest.mark.slow), (["--fault=reward"], "reward")],
    ids=["as it should be", "a wrong reward"],
)
def test_a_game_of_an_engine_is_tried_on_a_free_port(arguments, words, tmp_path):
    plain = {
        "environment": {"kind": "open_protocol"},
        "env_settings": {"env_path": sys.executable, "env_args": [str(GAME), "--agents=4", *arguments]},
        "behaviors": {"Agent": {"network_settings": {"hidden_units": 8}}},
        "checkpoint_settings": {"results_dir": str(tmp_path)},
    }
    errors, warnings = try_run(RunConfig.from_plain(plain))
    assert [words in error for error in errors] == [True] * (words is not None), errors
    assert warnings == []
