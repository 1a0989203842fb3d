"""What does not go with hindsight, by the file alone."""

from typing import Any

import pytest
from run_configs import changed

from headrace.config import ConfigError, RunConfig

PLAIN = {
    "environment": {"kind": "gymnasium", "id": "FetchReach-v4"},
    "behaviors": {"Reach": {"trainer_type": "sac", "hyperparameters": {"hindsight": {}}}},
}
HERE = "behaviors.Reach.hyperparameters.hindsight"


def test_hindsight_is_off_unless_the_file_has_the_key():
    for written, meant in (({}, ("future", 4)), ({"goals": "final", "per_transition": 1}, ("final", 1)), (None, None)):
        config = RunConfig.from_plain(changed(PLAIN, {HERE.replace(".", "__"): written}))
        settings: Any = config.behaviors["Reach"].hyperparameters
        found = settings.hindsight
        assert meant == (found and (found.goals, found.per_transition))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"behaviors__Reach__network_settings": {"memory": {}}}, f"{HERE}: relabels single steps, but a network with"),
        ({"behaviors__Reach__reward_signals": {"rnd": {}}}, f"{HERE}: recomputes the environment's reward, which"),
        (
            {"environment": {"kind": "builtin", "id": "Volley"}},
            f"{HERE}: needs an environment with compute_reward, such as ",
        ),
        ({"environment": None}, "kind unity have none; leave hindsight out"),
        ({"environment": None, "replay": {"streams": ["a.stream"]}}, "of the recorded environment; add the"),
        ({"environment__action_repeat": 2}, "environment.action_repeat: adds up the rewards of several steps, while"),
        (
            {"pipeline__hosts__replay__kind": "process"},
            f"{HERE}: relabels steps by their episodes, which only the learner knows",
        ),
        ({"behaviors__Reach__hyperparameters__hindsight": {"goals": "past"}}, f"{HERE}.goals: "),
        ({"behaviors__Reach__trainer_type": "ppo"}, "hindsight: "),
    ],
)
def test_settings_that_conflict_with_hindsight_are_refused(changes, said):
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_plain(changed(PLAIN, changes))
    (mistake,) = caught.value.mistakes
    assert said in str(mistake)


def test_a_recording_of_a_known_environment_is_learned_from():
    RunConfig.from_plain({**PLAIN, "replay": {"streams": ["a.stream"]}})
