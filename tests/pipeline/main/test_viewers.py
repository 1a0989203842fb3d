"""Viewers: one instance is arranged for them, and what can't be seen is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.main.run_shape import for_viewers

POLE = {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 16, "options": {"sutton_barto_reward": True}}
BOARD = {"kind": "pettingzoo", "id": "classic/connect_four-v3", "num_envs": 4}
GAME = {"kind": "builtin", "id": "Volley", "num_envs": 8}


def playing(environment, inference=True, actors=2, behavior=None, **viewers):
    plain = {"behaviors": {"A": behavior or {}}, "inference": viewers}
    plain |= {"checkpoint_settings": {"inference": inference}, "environment": environment}
    plain["pipeline"] = {"hosts": {"actors": {"replicas": actors}}}
    return RunConfig.from_plain(plain)


@pytest.fixture(autouse=True)
def _screen(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def test_a_window_is_that_of_one_instance_which_can_draw():
    config = for_viewers(playing(POLE, watch=True))
    assert config.environment is not None
    assert (config.environment.num_envs, config.pipeline.hosts.actors.replicas) == (1, 1)
    drawn = {"render_mode": "human", "vectorization_mode": "sync"}
    assert config.environment.options == {"sutton_barto_reward": True, **drawn}


def test_games_of_pettingzoo_have_windows_too():
    environment = for_viewers(playing(BOARD, watch=True)).environment
    assert environment is not None
    assert (environment.num_envs, environment.options) == (1, {"render_mode": "human"})


@pytest.mark.parametrize("environment", [POLE, BOARD, GAME], ids=lambda each: each["id"])
def test_a_film_is_of_one_instance_whatever_the_environment(environment):
    config = for_viewers(playing(environment, video="films"))
    assert config.environment is not None
    assert (config.environment.num_envs, config.pipeline.hosts.actors.replicas) == (1, 1)
    assert config.inference.wanted == 3, "films come to an end"
    assert config.inference.video == str(Path("films").absolute()), "the actor may have another present folder"


def test_without_viewers_or_while_training_nothing_changes():
    for config in (playing(POLE), playing(POLE, inference=False, watch=True)):
        assert for_viewers(config) is config


@pytest.mark.parametrize(
    ("environment", "viewers", "message"),
    [
        (GAME, {"watch": True}, "--watch: the built-in games have no window: watch them .* --monitor, .* --video DIR"),
        (POLE, {"watch": True, "video": "films"}, "use only one of the two"),
        (None, {"watch": True}, "--watch: Unity shows its games itself"),
        ({"kind": "godot"}, {"video": "films"}, "--video: Godot shows its games itself"),
        ({"kind": "open_protocol"}, {"watch": True}, "--watch: a game that uses the open protocol opens its own"),
        (None, {"video": "films"}, "--video: Unity shows its games itself"),
        ({"kind": "gymnasium", "factory": "math:sqrt"}, {"watch": True}, "environment.factory 'math:sqrt' has no"),
    ],
)
def test_an_environment_that_can_not_be_shown_is_refused_with_an_alternative(environment, viewers, message):
    with pytest.raises(RunError, match=message):
        for_viewers(playing(environment, actors=1, **viewers))


def test_a_window_needs_a_screen(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RunError, match="^--watch opens a window, but this machine has no display"):
        for_viewers(playing(POLE, watch=True))


def test_a_players_own_game_is_seen_on_the_page():
    game = {**GAME, "num_envs": 1}
    with pytest.raises(RunError, match="--video: brain 'player' plays on the live page"):
        for_viewers(playing(game, actors=1, behavior={"brain": "player"}, video="films"))
