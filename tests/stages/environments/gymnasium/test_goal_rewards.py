"""The reward of a goal environment as a function of goals: what is made for it, and what is refused by name."""

import re
from pathlib import Path

import numpy as np
import pytest
from goal_env import FACTORY, BitFlipping
from gymnasium import Wrapper
from gymnasium.vector import SyncVectorEnv, VectorWrapper

from headrace.config import RunConfig
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.given import GivenEnvironment, GivenObject, giving
from headrace.stages.environments.gymnasium.making import GymnasiumGoalRewards
from headrace.stages.errors import NotFiniteError, StageError

HERE = Path(__file__)


def rewards_of(size=4, factory=FACTORY, wrappers=(), **options):
    environment = {"kind": "gymnasium", "num_envs": 8, "options": {"bits": 4, **options}, "wrappers": list(wrappers)}
    environment |= {"id" if ":" not in factory else "factory": factory}
    if "-v" in factory:
        environment["options"] = {}
    config = RunConfig.from_plain({"environment": environment, "behaviors": {"Bits": {}}}, HERE)
    rewards = GymnasiumGoalRewards(EnvironmentRequest(config))
    rewards.open(size)
    return rewards


class Halved(Wrapper):
    """Has a `compute_reward` of its own."""

    def compute_reward(self, achieved, desired, info):
        assert len(info) == len(achieved)
        assert info[0] == {}
        return self.env.get_wrapper_attr("compute_reward")(achieved, desired, info)[:, None] / 2


def test_rewards_are_the_environments_own_in_the_dtype_of_its_spaces():
    rewards = rewards_of()
    found = rewards(np.array([[0, 1, 0, 1], [1, 1, 1, 1]], np.float64), np.array([[0, 1, 0, 1], [0, 1, 1, 1]]))
    assert (found.dtype, found.tolist()) == (np.float32, [0, -1])
    rewards.close()


def test_the_outermost_wrapper_that_computes_rewards_counts():
    found = rewards_of(wrappers=["test_goal_rewards:Halved"])(np.zeros((3, 4)), np.eye(3, 4))
    assert found.tolist() == [-0.5] * 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"broken": "missing"}, "has no method compute_reward"),
        ({"broken": "raises"}, "its compute_reward.. raised TypeError: list indices .* on 6 rows; hindsight calls"),
        ({"broken": "scalar"}, "its compute_reward.. returned a float for 6 rows; hindsight calls compute_reward"),
        ({"broken": "nan"}, "its compute_reward.. returned nan for the achieved goal .*, .* and the desired goal"),
        ({"size": 3}, "its observation 'achieved_goal' has the space MultiBinary.4.; hindsight expects .* of 3"),
        ({"factory": "CartPole-v1"}, "Gymnasium environment 'CartPole-v1': its observation 'achieved_goal' has the"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_environments_without_goal_rewards_are_refused_by_name(wrong, said):
    with pytest.raises(StageError, match=said):
        rewards_of(**wrong)


def test_a_vectorised_environment_is_refused():
    with pytest.raises(StageError, match="needs a single environment to compute rewards"):
        rewards_of(factory="test_goal_rewards:vectorised")


def vectorised(num_envs, bits):
    return VectorWrapper(SyncVectorEnv([lambda: BitFlipping(bits)] * num_envs))


def test_a_reward_that_is_not_finite_later_is_named_with_its_goals():
    env = BitFlipping(4, box=True)
    with giving("Bits", GivenEnvironment([GivenObject(env)])) as word:
        rewards = rewards_of(factory=word)
        env.broken = "nan"
        text = re.escape("returned nan for the achieved goal [1.0, 0.0, 0.0, 0.0] and the desired goal [0.0, 0.0, ")
        with pytest.raises(NotFiniteError, match=text):
            rewards(np.eye(4), np.zeros((4, 4)))
