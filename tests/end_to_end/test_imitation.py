"""Behaviours that learn by imitating: from demonstrations alone, or from a teacher of the same run."""

from __future__ import annotations

import pytest
from run_configs import IMITATOR, INLINE, cartpole, changed
from run_folders import streams, weights_digest
from runs import run_here

from headrace.pipeline.common.errors import RunError, RunFailed


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A short run of PPO, recorded."""
    results = tmp_path_factory.mktemp("teacher")
    run_here(cartpole(record__edges=["trainer"], **INLINE), results, "teacher")
    return results / "teacher"


def imitating(source, **changes):
    """CartPole by imitation alone."""
    plain = cartpole(**INLINE)
    plain["behaviors"] = {"CartPole": changed(IMITATOR, {f"hyperparameters__{key}": v for key, v in source.items()})}
    return changed(plain, changes)


def test_demonstrations_are_learned_from_repeatedly_without_an_environment(recorded, tmp_path):
    plain = imitating({"demo_path": streams(recorded)[0]})
    del plain["environment"]
    result = run_here(plain, tmp_path, "offline")
    behavior = result.behaviors["CartPole"]
    assert behavior.step >= 6000 > 3500, "there are about 3000 demonstrated steps"
    assert behavior.version > 0
    assert behavior.export is not None


def test_the_same_demonstrations_and_seed_give_the_same_weights(recorded, tmp_path):
    plain = imitating({"demo_path": streams(recorded)[0]})
    for name in ("first", "second"):
        run_here(plain, tmp_path, name)
    assert weights_digest(tmp_path / "first") == weights_digest(tmp_path / "second")


def test_a_student_learns_from_its_teachers_trajectories_as_they_come(tmp_path):
    plain = cartpole(**INLINE)
    student = changed(IMITATOR, {"hyperparameters__teacher": "CartPole", "max_steps": 3000})
    plain["behaviors"]["Apprentice"] = student
    plain["environment"]["behavior"] = "CartPole"
    result = run_here(plain, tmp_path, "online")
    assert result.behaviors["Apprentice"].step >= 3000
    assert result.behaviors["Apprentice"].version > 0
    assert result.behaviors["CartPole"].step >= 3000


def test_missing_demonstrations_are_reported_before_anything_starts(tmp_path):
    with pytest.raises(RunError, match=r"nowhere\.stream"):
        run_here(imitating({"demo_path": "nowhere.stream"}), tmp_path, "absent")


def test_a_run_starts_from_a_policy_that_imitation_made(recorded, tmp_path):
    imitated = run_here(imitating({"demo_path": streams(recorded)[0]}), tmp_path, "imitated")
    export = imitated.behaviors["CartPole"].export
    plain = cartpole(behaviors__CartPole__init_path=str(export), behaviors__CartPole__max_steps=500, **INLINE)
    result = run_here(plain, tmp_path, "improved")
    assert result.behaviors["CartPole"].version > 0


def test_a_missing_init_path_is_reported(tmp_path):
    plain = cartpole(behaviors__CartPole__init_path="missing.pt", **INLINE)
    with pytest.raises(RunError, match=r"init_path: there is no file .*missing\.pt"):
        run_here(plain, tmp_path, "run")


def test_a_policy_of_another_network_is_refused_by_name(recorded, tmp_path):
    export = sorted((recorded / "CartPole").glob("CartPole-*.pt"))[-1]
    plain = cartpole(
        behaviors__CartPole__init_path=str(export), behaviors__CartPole__network_settings__hidden_units=16, **INLINE
    )
    with pytest.raises(RunFailed, match=r"body\.0"):
        run_here(plain, tmp_path, "run")


@pytest.mark.lengthy
def test_a_behaviour_that_only_imitates_is_refused_only_if_the_environment_has_it(recorded, tmp_path):
    alone = imitating({"demo_path": streams(recorded)[0]})["behaviors"]["CartPole"]
    plain = cartpole(
        **INLINE, behaviors__Hall=alone, behaviors__CartPole__max_steps=1000, environment__behavior="CartPole"
    )
    result = run_here(plain, tmp_path, "mixed")
    assert result.behaviors["CartPole"].step >= 1000 and "Hall" not in result.behaviors
    plain["environment"]["behavior"] = "Hall"
    with pytest.raises(
        RunFailed,
        match=r"behaviors\.Hall: this behaviour learns only from demonstrations, which is not possible in a run whose agents act",
    ):
        run_here(plain, tmp_path, "met")
