"""That cases are run, and judged, as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from acceptance.acceptance_envs import Simple
from acceptance.cases import CASES
from acceptance.harness import BESIDE, Case, Demonstrations, configuration, final_score, passes, train

from headrace.config import RunConfig
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.trainer.imitation.loading import load_demonstrations

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


@pytest.mark.lengthy
def test_training_returns_the_returns_of_all_episodes(tmp_path):
    plain = configuration(tiny(num_envs=2), tmp_path)
    result, returns = train(plain, tmp_path, seed=3)

    behavior = result.behaviors["Task"]
    assert behavior.step >= 400
    assert len(returns) > 10
    # A random walk that costs a hundredth a step ends at one of its ends.
    assert -5 < min(returns) < max(returns) <= 1.021
    assert np.mean(returns[-100:]) == pytest.approx(behavior.recent_return, abs=1e-5)


def test_demonstrations_of_a_case_are_recorded_and_found(tmp_path):
    block: dict[str, Any] = {**TINY, "behavioral_cloning": {"demo_path": "<demonstrations>", "strength": 1.0}}
    case = tiny(behavior=block, demonstrations=Demonstrations(steps=20))

    plain = configuration(case, tmp_path)

    path = plain["behaviors"]["Task"]["behavioral_cloning"]["demo_path"]
    spec = Simple(1, "Task", branches=1).behavior_specs["Task"]
    demonstrations = load_demonstrations(path, spec)
    assert len(demonstrations) == 20
    assert demonstrations.episode_lengths.tolist() == [5] * 4
    assert demonstrations.terminated.all()
    goals = demonstrations.observations[0][:, 0]
    assert (demonstrations.choices[:, 0] == (goals > 0)).all()
    assert block["behavioral_cloning"]["demo_path"] == "<demonstrations>"


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_a_valid_configuration(name, tmp_path):
    config = RunConfig.from_plain(configuration(CASES[name], tmp_path), BESIDE)

    group = make_group(EnvironmentRequest(config))

    assert list(group.behavior_specs) == ["Task"]
    assert group.num_envs == CASES[name].num_envs
    assert config.behaviors["Task"].max_steps == CASES[name].steps
