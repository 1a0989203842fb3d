"""`stop_when`: what it says, and where it can't say it."""

from __future__ import annotations

import pytest

from headrace.config import load_config
from headrace.config.errors import ConfigError


def config(stop_when: object, **sections: object):
    play = {"self_play": {}} if sections.pop("plays", False) else {}
    return load_config({"behaviors": {"Ball": {"trainer_type": "ppo", "stop_when": stop_when, **play}}, **sections})


def test_stop_when_can_have_several_criteria():
    stop_when = config({"mean_reward": 475, "over": 50, "plateau": 1e5}).behaviors["Ball"].stop_when
    assert stop_when is not None
    assert (stop_when.mean_reward, stop_when.over, stop_when.elo, stop_when.plateau) == (475.0, 50, None, 100_000)


@pytest.mark.parametrize(
    ("stop_when", "sections", "expected"),
    [
        ({}, {}, "behaviors.Ball.stop_when: is empty; expected mean_reward, elo or plateau"),
        ({"mean_rewards": 1}, {}, "did you mean 'mean_reward'"),
        ({"elo": 1500}, {}, "behaviors.Ball.stop_when.elo: needs self_play"),
        ({"elo": 1500}, {"plays": True, "pipeline": {"deterministic": True}}, "a deterministic run can't use it to"),
        (
            {"elo": 1500},
            {"plays": True, "pipeline": {"hosts": {"learners": {"replicas": 2}}}},
            "replicas of a trainer can't use it to stop",
        ),
    ],
)
def test_invalid_stop_conditions_are_refused(stop_when, sections, expected):
    with pytest.raises(ConfigError) as refused:
        config(stop_when, **sections)
    assert expected in str(refused.value)
