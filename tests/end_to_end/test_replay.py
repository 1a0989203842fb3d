"""A recording at the trainer's receiver, replayed, gives the run's final weights again, bit for bit."""

from __future__ import annotations

import pytest
from run_configs import (
    INLINE,
    TEAM_ENV,
    adversarial,
    cartpole,
    changed,
    cooperating,
    copying,
    remembering,
    sac,
    schooled,
    team_play,
    unrolling,
    volley,
    with_expert,
)
from run_folders import streams, weights_digest
from runs import MORE_PATIENCE_S, Command, record_expert, run_here

from headrace.config import RunConfig
from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_handle import StopRequest
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.stream_file import StreamReader
from headrace.stages.trainer.imitation.loading import load_demonstrations

RUNS = {
    "CartPole": cartpole(behaviors__CartPole__max_steps=2000),
    "Volley": volley(behaviors__Volley__max_steps=3000),
    "SAC": sac(behaviors__Pendulum__max_steps=300),
    "gSDE": sac(behaviors__Pendulum__network_settings__gsde={"sample_freq": 3}),
    "memory": remembering(),
    "POCA": cooperating(behaviors__Team__max_steps=600),
    "IMPALA": unrolling(behaviors__CartPole__max_steps=600),
    "teams": team_play(),
    "bc": copying(behaviors__CartPole__max_steps=2000),
    "teacher and student": schooled(behaviors__CartPole__max_steps=1500, behaviors__Student__max_steps=1200),
    "GAIL": adversarial(),
}


"""Recorded in this process, and under `-m slow` by the command, whose order of batches nobody foresees.

test_seams.py has a recording of a learner in a process.
"""
ALWAYS = ("CartPole", "Volley", "SAC", "POCA", "IMPALA", "teacher and student")
RECORDED = [
    *(pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in RUNS),
    *(pytest.param(f"{name} in processes", marks=pytest.mark.slow) for name in RUNS),
]


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    return record_expert(tmp_path_factory.mktemp("expert"))


@pytest.fixture(scope="module", params=RECORDED)
def recorded(request, expert, tmp_path_factory):
    """A run at lag 1, recorded: its behaviour, its configuration, its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    name = request.param.removesuffix(" in processes")
    plain = changed(with_expert(RUNS[name], expert), {"pipeline__max_policy_lag": 1})
    behavior = next(iter(plain["behaviors"]))
    if name == request.param:
        return behavior, plain, run_here(changed(plain, {**INLINE, "record": {}}), folder, "run").folder
    command = Command(folder, plain, "--record", beside=[TEAM_ENV], patience_s=MORE_PATIENCE_S)
    try:
        assert command.wait() == 0, command.output
        command.assert_left_nothing()
    finally:
        command.end()
    return behavior, plain, command.run_folder


def test_a_replay_reproduces_the_weights_of_a_run(recorded, tmp_path):
    _, plain, run_folder = recorded
    result = run_here(replaying(plain, run_folder, env_settings__seed=-1), tmp_path, "inline")
    for behavior in plain["behaviors"]:
        assert weights_digest(result.folder, behavior) == weights_digest(run_folder, behavior), behavior
    assert not result.interrupted


@pytest.mark.parametrize("recorded", ["teacher and student"], indirect=True)
def test_a_student_that_was_not_recorded_learns_from_its_teachers_recording(recorded, tmp_path):
    """Its own receiver had the same."""
    behavior, plain, run_folder = recorded
    teachers = [path for path in streams(run_folder) if "Student" not in path]
    assert len(teachers) == len(streams(run_folder)) - 1
    run_here(replaying(plain, run_folder, replay__streams=teachers), tmp_path, "copied")
    for name in (behavior, "Student"):
        assert weights_digest(tmp_path / "copied", name) == weights_digest(run_folder, name)


@pytest.mark.parametrize("recorded", ["teacher and student"], indirect=True)
def test_demonstrations_from_a_folder_with_a_student_count_each_step_once(recorded):
    behavior, _, run_folder = recorded
    (teachers,) = [path for path in streams(run_folder) if "Student" not in path]
    together = load_demonstrations(str(run_folder / "streams"), behavior)
    assert len(together) == len(load_demonstrations(teachers, behavior))


@pytest.mark.parametrize("recorded", ["SAC"], indirect=True)
def test_a_replay_does_not_depend_on_the_settings_of_environments(recorded, tmp_path):
    """How many agents acted at a time, by which SAC's updates are paced, is in the recording."""
    behavior, plain, run_folder = recorded
    other = replaying(plain, run_folder, env_settings__num_envs=16)
    # The defaults for learning depend on the kind of environment.
    other["behaviors"] = RunConfig.from_plain(plain).to_plain()["behaviors"]
    del other["environment"]
    run_here(other, tmp_path, "without")
    assert weights_digest(tmp_path / "without", behavior) == weights_digest(run_folder, behavior)


@pytest.mark.parametrize("recorded", ["CartPole"], indirect=True)
def test_a_replay_with_another_seed_gives_other_weights(recorded, tmp_path):
    behavior, plain, run_folder = recorded
    run_here(replaying(plain, run_folder, env_settings__seed=99), tmp_path, "other")
    assert weights_digest(tmp_path / "other", behavior) != weights_digest(run_folder, behavior)


def test_a_run_that_was_stopped_and_resumed_is_replayed_from_both_its_recordings(tmp_path):
    plain = cartpole(record__edges=["trainer"], behaviors__CartPole__max_steps=10**6, **INLINE)
    for resume in (False, True):
        stop = StopRequest()
        options = RunOptions(stop=stop, on_checkpoint=stopping(stop))
        assert run_here(plain, tmp_path, "run", options, resume=resume).interrupted
    assert len(streams(tmp_path / "run")) == 2
    run_here({**replaying(plain, tmp_path / "run"), "record": None}, tmp_path, "again")
    assert weights_digest(tmp_path / "again") == weights_digest(tmp_path / "run")


def stopping(stop):
    """Ask a run to stop at its first checkpoint."""
    return lambda checkpoint: stop.set()


def replaying(plain, run_folder, **changes):
    """The configuration with the recording in place of the actors, in this process."""
    return changed({**plain}, {**INLINE, "replay__streams": list(streams(run_folder)), **changes})


def test_a_recording_lists_the_columns_of_its_rows(recorded):
    _, _, run_folder = recorded
    for path in streams(run_folder):
        reader = StreamReader(path)
        announced = next(iter(reader.header.columns.values()))["rows"]  # all of its behaviour ids are of one name
        for frame in reader:
            if isinstance(frame.message, TrajectoryBatch) and frame.message.num_rows:
                found = {(name, str(c.dtype), c.shape[1:]) for name, c in frame.message.rows.items()}
                assert found == {(c.name, c.dtype, c.shape) for c in announced}
