"""The running deviation of discounted returns is that of a loop over steps, however they come in pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_samples import CONTINUOUS, VECTOR, experience

from headrace.config import BehaviorSettings
from headrace.queues.specs import BehaviorSpec
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.trajectories import Chains, RewardScale

GAMMA = 0.9


class ByStep:
    """`VecNormalize`'s statistics, one step of all environments at a time."""

    def __init__(self, envs):
        self.returns, self.mean, self.var, self.count = np.zeros(envs), 0.0, 1.0, 1e-4

    def step(self, rewards, over):
        self.returns = self.returns * GAMMA + rewards
        mean, var, count = self.returns.mean(), self.returns.var(), len(rewards)
        delta, total = mean - self.mean, self.count + count
        squares = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean, self.var, self.count = self.mean + delta * count / total, squares / total, total
        self.returns[over] = 0.0


def pieces_of(rewards, over, cut):
    """Trajectories (agent, episode, ended, rewards) of [steps, envs], cut after `cut` steps."""
    found = []
    for agent in range(rewards.shape[1]):
        begin, episode = 0, 0
        for step in range(len(rewards)):
            ended = bool(over[step, agent])
            if ended or step + 1 - begin == cut or step + 1 == len(rewards):
                found.append((agent, episode, ended, rewards[begin : step + 1, agent]))
                begin, episode = step + 1, episode + ended
    return found


def see(scale, pieces, update):
    agents, episodes, ended, rewards = zip(*pieces, strict=True)
    lengths = np.array([len(each) for each in rewards])
    chains = Chains.of(np.array(agents), np.array(episodes), np.array(ended))
    scale.see(np.concatenate(rewards).astype(np.float32), lengths, chains, update)


@pytest.mark.lengthy
@given(seed=st.integers(0, 1000), envs=st.integers(1, 4), cut=st.integers(1, 9))
def test_the_scale_equals_that_of_single_steps(seed, envs, cut):
    random = np.random.default_rng(seed)
    scale, expected = RewardScale(GAMMA), ByStep(envs)
    episodes = np.zeros(envs, np.int64)
    for update in range(1, 4):
        rewards = random.normal(3, 5, (12, envs)).astype(np.float32).astype(np.float64)
        over = random.random((12, envs)) < 0.2
        for step in range(12):
            expected.step(rewards[step], over[step])
        pieces = [(a, episodes[a] + e, ended, r) for a, e, ended, r in pieces_of(rewards, over, cut)]
        see(scale, pieces, update)
        episodes += over.sum(axis=0)
        state = scale.state_dict()
        np.testing.assert_allclose([state["mean"], state["variance"]], [expected.mean, expected.var], rtol=1e-9)


def test_the_scale_continues_from_its_state_within_episodes():
    whole, first = RewardScale(GAMMA), RewardScale(GAMMA)
    one, other = [(7, 3, False, np.arange(5.0))], [(7, 3, False, np.arange(4.0))]
    for scale in (whole, first):
        see(scale, one, 1)
    resumed = RewardScale(GAMMA)
    resumed.load_state_dict(first.state_dict())
    for scale in (whole, resumed):
        see(scale, other, 2)
    assert resumed.state_dict()["variance"] == whole.state_dict()["variance"]


@pytest.mark.lengthy
@pytest.mark.parametrize("trainer", ["ppo", "impala", "poca", "sac"])
def test_a_trainer_learns_the_same_from_rewards_of_any_size(trainer):
    sizes = {"unroll_length": 5, "batch_size": 4} if trainer == "impala" else {"batch_size": 20, "buffer_size": 60}
    sizes |= {"buffer_size": 20} if trainer in ("ppo", "poca") else {}
    found = []
    for factor in (1.0, 1000.0):
        block = {
            "trainer_type": trainer,
            "network_settings": {"hidden_units": 8, "num_layers": 1},
            "hyperparameters": {**sizes, "reward_normalization": True},
        }
        spec = BehaviorSpec("Test", (VECTOR,), CONTINUOUS)
        made = make_trainer(TrainerContext("Test", BehaviorSettings.model_validate(block), spec, seed=1))
        for update in range(3):
            batch = experience(spec, [5, 5, 5, 5], update, squashed=trainer == "sac")
            made.add(batch.replace(rewards=(batch.rewards * factor).astype(np.float32)))
            made.learn()
        found.append(made.policy().weights)
    # The variance of 1 that it begins with counts as a ten-thousandth of a step.
    np.testing.assert_allclose(found[0], found[1], rtol=1e-2, atol=1e-3)
