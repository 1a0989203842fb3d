"""Recordings of self-play from behind the agent processor: what was recorded for learning is learned, whoever made it."""

from __future__ import annotations

import collections
from typing import Any

import pytest
from run_configs import INLINE, changed, volley
from run_folders import streams
from runs import run_here

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.stream_file import StreamReader

SELF_PLAY = {"save_steps": 500, "team_change": 1000, "swap_steps": 250, "window": 5}
PURSUIT: dict[str, Any] = {
    "environment": {"kind": "builtin", "id": "Pursuit", "num_envs": 8},
    "env_settings": {"seed": 3},
    "default_settings": {
        "trainer_type": "ppo",
        "hyperparameters": {"buffer_size": 512, "batch_size": 128, "num_epoch": 1},
        "network_settings": {"hidden_units": 16, "num_layers": 1},
        "max_steps": 2500,
        "summary_freq": 1000,
    },
    "behaviors": {"Pursuer": {"self_play": SELF_PLAY}, "Evader": {"self_play": SELF_PLAY}},
}
GAMES = {"one behaviour on both sides": volley(behaviors__Volley__max_steps=3000), "a behaviour for each side": PURSUIT}


def rows_of(run_folder, edge):
    """Recorded steps by behaviour, those for learning and all others."""
    total: collections.Counter[Any] = collections.Counter()
    for path in streams(run_folder):
        reader = StreamReader(path)
        for frame in reader if edge in reader.header.edges else ():
            batch = frame.message
            if isinstance(batch, TrajectoryBatch):
                learning = batch.trajectories["learning"]
                for flag in (True, False):
                    total[batch.behavior, flag] += int(batch.lengths[learning == flag].sum())
    return total


@pytest.fixture(scope="module", params=[*GAMES.values()], ids=[*GAMES])
def recorded(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    plain = changed(request.param, {**INLINE, "record": {"edges": ["agent_processor"]}})
    return request.param, run_here(plain, folder, "run").folder


def replay(plain, run_folder, folder, **changes):
    whole = changed(plain, {**INLINE, "replay__streams": list(streams(run_folder)), **changes})
    return run_here(whole, folder, "again").behaviors


@pytest.mark.lengthy
def test_all_steps_that_were_recorded_for_learning_are_learned(recorded, tmp_path):
    plain, run_folder = recorded
    rows = rows_of(run_folder, "agent_processor")
    assert any(count for (_, learning), count in rows.items() if not learning)
    enough = {f"behaviors__{name}__max_steps": 10**6 for name in plain["behaviors"]}
    for name, result in replay(plain, run_folder, tmp_path, **enough).items():
        assert result.step == rows[name, True] > 2000


@pytest.mark.lengthy
def test_without_self_play_the_opponents_steps_are_left_out_and_counted(recorded, tmp_path, caplog):
    plain, run_folder = recorded
    rows = rows_of(run_folder, "agent_processor")
    changes: dict[str, Any] = {f"behaviors__{name}__self_play": None for name in plain["behaviors"]}
    changes |= {f"behaviors__{name}__max_steps": 10**6 for name in plain["behaviors"]}
    for name, result in replay(plain, run_folder, tmp_path, **changes).items():
        assert result.step == rows[name, True]
        ghosts = rows[name, False]
        assert f"{name}: skipped {ghosts} of {ghosts + rows[name, True]} recorded steps" in caplog.text
