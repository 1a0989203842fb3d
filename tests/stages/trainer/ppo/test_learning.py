"""That it learns: ML-Agents' smallest task, played without a pipeline around the trainer."""

import numpy as np
import pytest
import torch

from headrace.config import BehaviorSettings
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy import NumpyPolicy, design_of
from headrace.stages.trainer import TrainerContext
from headrace.stages.trainer.ppo import PPOTrainer

pytestmark = pytest.mark.lengthy

STEP = 0.2
HORIZON = 64
SETTINGS = {
    "trainer_type": "ppo",
    "hyperparameters": {
        "batch_size": 16,
        "buffer_size": 64,
        "learning_rate": 5e-3,
        "learning_rate_schedule": "constant",
    },
    "network_settings": {"hidden_units": 32, "num_layers": 1},
    "max_steps": 3000,
}


class Simple:
    """Go to the end of a line that the observation names; an episode at its best returns about 1.02."""

    def __init__(self, seed):
        self._random = np.random.default_rng(seed)
        self.restart()

    def restart(self):
        self.goal = float(self._random.choice([-1.0, 1.0]))
        self.position = 0.0
        return self.observation()

    def observation(self):
        return np.array([self.goal], np.float32)

    def step(self, direction):
        self.position = float(np.clip(self.position + np.clip(direction, -STEP, STEP), -1.0, 1.0))
        if abs(self.position) < 1.0:
            return -0.01, False
        return 1.06 * self.position * self.goal, True


def play(actions, seed):
    """Train for `max_steps`; returns of the last 5 episodes."""
    settings = BehaviorSettings.model_validate(SETTINGS)
    spec = BehaviorSpec("1D", (ObservationSpec("goal", (1,)),), actions)
    trainer = PPOTrainer(TrainerContext("1D", settings, spec, seed=seed))
    policy = NumpyPolicy(design_of(spec, settings))
    policy.load(trainer.policy())
    random, game = np.random.default_rng(seed), Simple(seed)
    observation, steps, returns, total = game.restart(), [], [], 0.0
    while trainer.step < settings.max_steps:
        decision = policy.act((observation[None],), None, random)
        continuous, discrete = decision.actions.continuous[0], decision.actions.discrete[0]
        reward, done = game.step(float(continuous[0]) if actions.continuous_size else 2.0 * discrete[0] - 1.0)
        steps.append({**decision.columns, "obs_0": observation[None], "rewards": np.array([reward], np.float32)})
        total += reward
        observation = game.observation()
        if done or len(steps) == HORIZON:
            trainer.add(pack(steps, done, observation))
            steps = []
            if trainer.ready():
                trainer.learn()
                policy.load(trainer.policy())
        if done:
            returns.append(total)
            observation, total = game.restart(), 0.0
    return returns[-5:]


def pack(steps, terminated, next_observation):
    return TrajectoryBatch(
        "1D",
        0,
        {name: np.concatenate([step[name] for step in steps]) for name in steps[0]},
        {
            "lengths": np.array([len(steps)], np.int32),
            "terminated": np.array([terminated]),
            "truncated": np.array([False]),
            "next_obs_0": next_observation[None],
            "agent_ids": np.array([1]),
            "episode_ids": np.array([1]),
        },
    )


@pytest.mark.slow  # the acceptance cases say the same of whole runs
@pytest.mark.parametrize("actions", [ActionSpec(1), ActionSpec(0, (2,))], ids=["continuous", "discrete"])
def test_it_learns_the_simple_task_of_ml_agents_on_two_of_three_seeds(actions):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scores = [float(np.mean(play(actions, seed))) for seed in (0, 1, 2)]
    finally:
        torch.set_num_threads(threads)
    assert sum(score > 0.9 for score in scores) >= 2, scores
