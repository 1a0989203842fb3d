"""`pipeline.deterministic: true`: the same seed gives the same bits, whatever the clock does and wherever it is cut."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from run_configs import (
    TEAM_ENV,
    TOLD_ENV,
    cartpole,
    changed,
    cooperating,
    copying,
    remembering,
    sac,
    taught,
    team_play,
    unrolling,
    volley,
    with_expert,
)
from run_folders import digest, read_whole_checkpoint
from runs import Command, record_expert, run_here

from headrace.pipeline.roles import runtime
from headrace.pipeline.run_folder import checkpoint
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint, write_manifest

CARTPOLE = cartpole(
    pipeline__deterministic=True,
    behaviors__CartPole__max_steps=2_000,
    behaviors__CartPole__checkpoint_interval=220,
    behaviors__CartPole__hyperparameters__buffer_size=250,
)
VOLLEY = volley(
    pipeline__deterministic=True,
    behaviors__Volley__max_steps=2_000,
    behaviors__Volley__checkpoint_interval=220,
    behaviors__Volley__hyperparameters__buffer_size=250,
    behaviors__Volley__network_settings__normalize=True,
    behaviors__Volley__self_play={"save_steps": 450, "team_change": 850, "swap_steps": 300, "window": 4},
)
ALL_TEAMS = changed(
    VOLLEY,
    {
        "behaviors__Volley__self_play": {"learning_teams": "all", "save_steps": 450},
        "behaviors__Volley__hyperparameters__regularization": {"anchor_steps": 1_500, "averaged_share": 0.5},
    },
)
SAC = sac(
    pipeline__deterministic=True,
    behaviors__Pendulum__max_steps=300,
    behaviors__Pendulum__checkpoint_interval=35,
    behaviors__Pendulum__hyperparameters__buffer_size=200,
    behaviors__Pendulum__hyperparameters__random_steps=50,  # resumed before their end, and after it
)
GSDE = changed(SAC, {"behaviors__Pendulum__network_settings__gsde": {"sample_freq": 3}})
MEMORY = remembering(pipeline__deterministic=True, behaviors__CartPole__checkpoint_interval=130)
CRITERIA = {"behavior": "Guess", "min_lesson_length": 30}
LESSONS = taught(
    pipeline__deterministic=True,
    behaviors__Guess__max_steps=5_000,
    behaviors__Guess__checkpoint_interval=480,
    environment_parameters__unused={"sampler_type": "gaussian", "sampler_parameters": {"seed": 4}},
    environment_parameters__worth__curriculum=[
        {
            "name": f"{worth} to 6",
            "value": {"sampler_type": "uniform", "sampler_parameters": {"min_value": worth, "max_value": 6}},
            # Where a lesson ends depends on chance and on what was learned.
            "completion_criteria": {**CRITERIA, "threshold": worth / 3 - 0.6, "require_reset": worth % 2 == 1},
        }
        for worth in range(5)
    ]
    + [{"name": "6", "value": 6}],
)
POCA = cooperating(pipeline__deterministic=True, behaviors__Team__checkpoint_interval=130)
TEAMS = team_play(pipeline__deterministic=True, behaviors__Team__checkpoint_interval=130)
IMPALA = unrolling(pipeline__deterministic=True, behaviors__CartPole__checkpoint_interval=130)
COPYING = copying(
    pipeline__deterministic=True,
    behaviors__CartPole__max_steps=3_000,
    behaviors__CartPole__checkpoint_interval=250,
)
RUNS = {
    "CartPole": CARTPOLE,
    "Volley": VOLLEY,
    "all teams": ALL_TEAMS,
    "SAC": SAC,
    "gSDE": GSDE,
    "memory": MEMORY,
    "lessons": LESSONS,
    "POCA": POCA,
    "teams": TEAMS,
    "bc": COPYING,
    "IMPALA": IMPALA,
}


def usually(*names: str):
    """These of the runs are looked at every time, and the others by the slow tests."""
    runs = [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in RUNS]
    return pytest.mark.parametrize("whole", runs, indirect=True)


def states(run_folder):
    """A checksum of each part of the newest checkpoint: trainers, with self-play the ghost stage; and of the lessons."""
    states = {part: digest(state) for part, state in read_whole_checkpoint(run_folder).items()}
    return {**states, "lessons": digest(newest_checkpoint(run_folder / "checkpoints").progress.get("curricula"))}


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    return record_expert(tmp_path_factory.mktemp("expert"))


@pytest.fixture(scope="module", params=list(RUNS))
def whole(request, expert, tmp_path_factory):
    """A run that was never interrupted: its configuration, its folder, and copies made at each of its checkpoints."""
    results = tmp_path_factory.mktemp(request.param)
    plain = with_expert(RUNS[request.param], expert)
    copies = []
    write = write_manifest

    def keeping(checkpoints, number, *arguments):
        write(checkpoints, number, *arguments)
        copies.append(results / f"after-{number}")
        shutil.copytree(checkpoints.parent, copies[-1], ignore=shutil.ignore_patterns(".lock"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_manifest", keeping)
        run_here(plain, results, "whole")
    return plain, results / "whole", copies


@usually("SAC")
def test_a_second_run_has_the_same_state_though_its_hosts_report_all_the_time(whole, tmp_path, monkeypatch):
    plain, first, _ = whole
    monkeypatch.setattr(runtime, "REPORT_EVERY_S", 0.0)  # between any two turns of anybody else
    run_here(plain, tmp_path, "second")
    assert states(tmp_path / "second") == states(first)


@usually("SAC")
def test_another_seed_has_another_state(whole, tmp_path):
    plain, first, _ = whole
    run_here({**plain, "env_settings": {"seed": 99}}, tmp_path, "other")
    assert states(tmp_path / "other") != states(first)


@usually("CartPole", "SAC", "Volley")
@pytest.mark.parametrize(
    "cuts", [slice(2, -1, 4), pytest.param(slice(0, -1), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_run_resumed_from_any_of_its_checkpoints_ends_in_the_same_state(whole, tmp_path, monkeypatch, cuts):
    plain, first, copies = whole
    assert len(copies) >= 8
    monkeypatch.setattr(runtime, "REPORT_EVERY_S", 0.003)
    for copy in copies[cuts]:
        resumed = shutil.copytree(copy, tmp_path / copy.name)
        run_here(plain, tmp_path, copy.name, resume=True)
        assert states(resumed) == states(first), f"resumed from checkpoint {copy.name}"


@usually("Volley")
@pytest.mark.parametrize("other_moment", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_killed_in_the_middle_and_resumed_ends_in_the_same_state(whole, tmp_path, request, other_moment):
    """Every second run at its first checkpoint and the others at a later moment, or the other way round."""
    plain, first, _ = whole
    at_first = list(RUNS).index(request.node.callspec.params["whole"]) % 2 == other_moment
    command = Command(tmp_path, plain, beside=[TOLD_ENV, TEAM_ENV])
    try:
        checkpoint = command.until_checkpoint(0 if at_first else random.randrange(1, 4))
        command.process.kill()
        command.wait()
        command.assert_left_nothing()
    finally:
        command.end()
    max_steps = next(iter(plain["behaviors"].values()))["max_steps"]
    assert max(checkpoint.steps.values()) < max_steps, "it had come to its end before it was killed"
    run_here(plain, command.results, "run", resume=True)
    assert states(command.run_folder) == states(first)


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["lessons"], indirect=True)
def test_the_run_with_lessons_goes_through_several_of_them_and_is_cut_in_different_ones(whole):
    """Or the others would say nothing about lessons."""
    _, _, copies = whole
    progress = [json.loads((copy / "checkpoints" / "manifest.json").read_text())["progress"] for copy in copies]
    reached = [each["curricula"]["lessons"]["worth"] for each in progress]
    assert len(set(reached)) >= 4, reached
    assert reached == sorted(reached)


@pytest.mark.parametrize("whole", ["Volley", pytest.param("teams", marks=pytest.mark.slow)], indirect=True)
def test_the_runs_with_self_play_are_cut_in_turns_of_both_teams(whole):
    _, _, copies = whole
    assert {read_whole_checkpoint(copy)["ghost@main"]["learning_team"] for copy in copies} == {0, 1}
