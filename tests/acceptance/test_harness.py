"""That cases are run, and judged, as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from acceptance.acceptance_envs import Simple
from acceptance.cases import CASES
from acceptance.harness import BESIDE, Case, Demonstrations, configuration, final_score, passes, train, try_case
from acceptance.recording import record

from headrace.config import RunConfig
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.trainer.imitation import load_demonstrations

TINY: dict[str, Any] = {
    "trainer_type": "ppo",
    "hyperparameters": {"batch_size": 16, "buffer_size": 64},
    "network_settings": {"num_layers": 1, "hidden_units": 8},
    "max_steps": 400,
}


def tiny(**changes):
    return Case(
        **{"name": "tiny", "task": "Simple", "behavior": TINY, "threshold": 0.9, "options": {"branches": 1}, **changes}
    )


def test_the_last_five_episodes_of_each_instance_are_judged():
    assert final_score([9, 0, 1, 1, 1, 2]) == 1
    assert final_score([9, *[1] * 9, 2], num_envs=2) == pytest.approx(1.1)
    assert passes([0, 1, 1, 1, 1, 1], 0.9)
    assert not passes([1, 1, 1, 1, 1, 0], 0.9)


def test_a_run_with_too_few_episodes_does_not_pass():
    assert final_score([1] * 4) == -np.inf
    assert not passes([1] * 9, 0.9, num_envs=2)


@pytest.mark.lengthy
def test_training_tells_the_returns_of_all_episodes(tmp_path):
    plain = configuration(tiny(num_envs=2), tmp_path)
    result, returns = train(plain, tmp_path, seed=3)

    behavior = result.behaviors["Task"]
    assert behavior.step >= 400
    assert len(returns) > 10
    # A random walk that costs a hundredth a step ends at one of its ends.
    assert -5 < min(returns) < max(returns) <= 1.021
    assert np.mean(returns[-100:]) == pytest.approx(behavior.recent_return, abs=1e-5)


@pytest.mark.slow  # tests/end_to_end/test_determinism.py
def test_one_seed_gives_one_outcome(tmp_path):
    first, second, other = (try_case(tiny(), tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))

    assert first.returns == second.returns != other.returns


@pytest.mark.lengthy
def test_a_control_is_accepted_for_failing(tmp_path):
    learned, control = (try_case(tiny(fails=fails), tmp_path / str(fails), 0) for fails in (False, True))

    assert learned.score == control.score < 0.9
    assert (learned.accepted, control.accepted) == (False, True)


def test_what_is_imitated_is_recorded_and_found(tmp_path):
    block: dict[str, Any] = {**TINY, "behavioral_cloning": {"demo_path": "<demonstrations>", "strength": 1.0}}
    case = tiny(behavior=block, demonstrations=Demonstrations(steps=20))

    plain = configuration(case, tmp_path)

    path = plain["behaviors"]["Task"]["behavioral_cloning"]["demo_path"]
    spec = Simple(1, "Task", branches=1).behavior_specs["Task"]
    demonstrations = load_demonstrations(path, spec)
    assert len(demonstrations) == 20
    assert demonstrations.episode_lengths.tolist() == [5] * 4
    assert demonstrations.terminated.all()
    goals = demonstrations.observations.vectors[:, 0]
    assert (demonstrations.choices[:, 0] == (goals > 0)).all()
    assert block["behavioral_cloning"]["demo_path"] == "<demonstrations>"


def test_recorded_actions_are_those_that_the_environment_got(tmp_path):
    group = Simple(3, "Task", continuous=1, branches=1, step_size=0.5)

    path = record(group, lambda rows: group.solve(), tmp_path / "expert.stream", steps=30)

    demonstrations = load_demonstrations(str(path), group.behavior_specs["Task"])
    assert len(demonstrations) == 30
    goals = demonstrations.observations.vectors[:, 0]
    assert (demonstrations.continuous[:, 0] == goals).all()
    assert set(goals) == {-1.0, 1.0}
    assert demonstrations.rewards.tolist() == pytest.approx([-0.01, 1.06] * 15)


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_valid_configuration_of_an_environment_that_there_is(name, tmp_path):
    config = RunConfig.from_plain(configuration(CASES[name], tmp_path), BESIDE)

    group = make_group(EnvironmentRequest(config))

    assert list(group.behavior_specs) == ["Task"]
    assert group.num_envs == CASES[name].num_envs
    assert config.behaviors["Task"].max_steps == CASES[name].steps
