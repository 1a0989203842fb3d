"""Actions that last several environment steps, from end to end: the real command, its statistics, recordings, resuming."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from run_configs import INLINE, cartpole, changed, volley
from run_folders import read_whole_checkpoint, streams, weights_digest
from runs import run_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.pipeline.policies.export import load_acting_policy
from headrace.pipeline.run import RunOptions
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.stream_file import StreamReader

LEARNED = cartpole(environment__action_repeat={"max": 4}, record__edges=["trainer"], pipeline__deterministic=True)


def curves(run_folder, behavior="CartPole"):
    return EventAccumulator(str(run_folder / behavior)).Reload()


def batches(run_folder):
    """What reached the trainer."""
    for path in streams(run_folder):
        yield from (frame.message for frame in StreamReader(path) if isinstance(frame.message, TrajectoryBatch))


def state(run_folder):
    return read_whole_checkpoint(run_folder)["trainer@learner-CartPole"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that learns how long to hold its actions."""
    return run_here(changed(LEARNED, INLINE), tmp_path_factory.mktemp("whole"), "run").folder


def test_a_learned_repeat_has_a_histogram_and_a_count_of_environment_steps(whole):
    curve = curves(whole)
    frames = [event.value for event in curve.Scalars("Environment/Frames")]
    steps = [event.step for event in curve.Scalars("Environment/Frames")]
    assert {"action/branch_0_hist", "action/step_mul_hist"} <= set(curve.Tags()["histograms"])
    assert all(1.2 * step < frame < 4 * step for step, frame in zip(steps, frames, strict=True))
    assert frames == sorted(frames)


def test_rows_record_how_long_their_actions_lasted(whole):
    episodes = 0
    for batch in batches(whole):
        chosen, frames = batch.rows["discrete_actions"][:, 1] + 1, batch.rows["env_frames"]
        ends = np.cumsum(batch.lengths)[batch.terminated | batch.truncated] - 1
        held_to_the_end = np.delete(np.arange(len(frames)), ends)
        assert np.array_equal(frames[held_to_the_end], chosen[held_to_the_end])
        assert (frames[ends] <= chosen[ends]).all()
        assert np.array_equal(batch.rewards, frames.astype(np.float32)), "CartPole gives 1 for each environment step"
        episodes += len(ends)
    assert episodes > 20


def test_a_replayed_recording_counts_its_environment_steps_and_ends_in_the_same_weights(whole, tmp_path):
    replayed = cartpole(**INLINE, pipeline__deterministic=True, replay__streams=streams(whole))
    found = state(run_here(replayed, tmp_path, "replay").folder)
    assert found["frames"] == state(whole)["frames"] > found["trainer"]["step"]
    assert weights_digest(tmp_path / "replay") == weights_digest(whole)


def test_the_exported_policy_chooses_the_repeat_and_has_no_onnx_model(whole):
    export = max((whole / "CartPole").glob("CartPole-*.pt"))
    decided = load_acting_policy(export).act((np.zeros((5, 4), np.float32),), None, np.random.default_rng(0))
    assert decided.actions.discrete.shape == (5, 2)
    assert not list(whole.rglob("*.onnx"))
    log = (whole / "run_logs" / "run.log").read_text(encoding="utf-8")
    assert "the policy chooses how long to hold each action (environment.action_repeat)" in log
    stop = asyncio.Event()
    options = RunOptions(stop=stop, on_progress=lambda snapshot: stop.set())
    played = run_here(changed(LEARNED, {**INLINE, "record": None}), whole.parent, "run", options, inference=True)
    assert played.behaviors["CartPole"].step > 0


def test_games_end_while_opponents_hold_their_actions(tmp_path):
    """An agent that needs no action is still in its game."""
    repeated = volley(**INLINE, environment__action_repeat={"max": 3}, behaviors__Volley__max_steps=3000)
    result = run_here(repeated, tmp_path, "run")
    league = json.loads((result.folder / "Volley" / "league.json").read_text())
    assert sum(entry["won"] + entry["lost"] for entry in league["results"]) > 20


def test_an_evaluation_holds_actions_against_a_scripted_player(tmp_path):
    plain = volley(
        **INLINE,
        environment__action_repeat={"max": 3},
        evaluation={"every": 1000, "episodes": 4, "opponents": "headrace.stages.games.volley:ScriptedPlayer"},
        behaviors__Volley__max_steps=1500,
    )
    result = run_here(plain, tmp_path, "run")
    assert (result.folder / "Volley" / "Volley-best.pt").is_file()
