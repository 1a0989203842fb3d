"""A recording at the trainer's inlet, replayed, gives the run's final weights again, bit for bit."""

from __future__ import annotations

import asyncio

import pytest
from runs import (
    INLINE,
    TEAM_ENV,
    Command,
    cartpole,
    changed,
    cooperating,
    remembering,
    run_here,
    sac,
    streams,
    team_play,
    trainer_digest,
    volley,
    weights_digest,
)

from pipeline.run import RunOptions

RUNS = {
    "CartPole": cartpole(),
    "Volley": volley(),
    "SAC": sac(),
    "memory": remembering(),
    "POCA": cooperating(),
    "teams": team_play(),
}


@pytest.fixture(scope="module", params=list(RUNS))
def recorded(request, tmp_path_factory):
    """A default run with process hosts and lag 1, recorded: its behaviour, its configuration, its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    plain = RUNS[request.param]
    command = Command(folder, plain, "--record", beside=[TEAM_ENV])
    try:
        assert command.wait() == 0, command.output
        command.assert_left_nothing()
    finally:
        command.end()
    return next(iter(plain["behaviors"])), plain, command.run_folder


@pytest.mark.parametrize("recorded", ["CartPole"], indirect=True)
def test_a_process_host_replays_a_run_of_processes(recorded, start):
    behavior, plain, run_folder = recorded
    replay = start(plain, "--replay", *streams(run_folder))
    assert replay.wait() == 0, replay.output
    replay.assert_left_nothing()
    assert weights_digest(replay.run_folder, behavior) == weights_digest(run_folder, behavior)
    assert trainer_digest(replay.run_folder, behavior) == trainer_digest(run_folder, behavior)


def test_an_inline_host_replays_a_run_of_processes(recorded, tmp_path):
    behavior, plain, run_folder = recorded
    result = run_here(replaying(plain, run_folder), tmp_path, "inline")
    assert weights_digest(result.folder, behavior) == weights_digest(run_folder, behavior)
    assert not result.interrupted


def test_a_replay_with_another_seed_gives_other_weights(recorded, tmp_path):
    behavior, plain, run_folder = recorded
    run_here(replaying(plain, run_folder, env_settings__seed=99), tmp_path, "other")
    assert weights_digest(tmp_path / "other", behavior) != weights_digest(run_folder, behavior)


def test_a_replay_takes_the_recordings_seed_where_the_configuration_leaves_it_open(recorded, tmp_path):
    behavior, plain, run_folder = recorded
    run_here(replaying(plain, run_folder, env_settings__seed=-1), tmp_path, "open")
    assert weights_digest(tmp_path / "open", behavior) == weights_digest(run_folder, behavior)


def test_a_run_that_was_stopped_and_resumed_is_replayed_from_both_its_recordings(tmp_path):
    plain = cartpole(record__edges=["trainer"], behaviors__CartPole__max_steps=10**6, **INLINE)
    for resume in (False, True):
        stop = asyncio.Event()
        options = RunOptions(stop=stop, on_progress=lambda snapshot, stop=stop: stop.set())
        assert run_here(plain, tmp_path, "run", options, resume=resume).interrupted
    assert len(streams(tmp_path / "run")) == 2
    run_here({**replaying(plain, tmp_path / "run"), "record": None}, tmp_path, "again")
    assert weights_digest(tmp_path / "again") == weights_digest(tmp_path / "run")


def replaying(plain, run_folder, **changes):
    """The configuration with the recording in place of the actors, in this process."""
    return changed({**plain}, {**INLINE, "replay__streams": list(streams(run_folder)), **changes})
