"""Small PPO trainers and trajectories for them."""

import numpy as np
import pytest
from opened_trainers import OpenedPPO
from trainer_samples import Reported

from headrace.config import BehaviorSettings
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer.protocol import TrainerContext

DISCRETE = ActionSpec(0, (3,))


@pytest.fixture
def make_trainer():
    def make(
        actions=DISCRETE,
        *,
        seed=0,
        statistics=None,
        network=None,
        max_steps=1000,
        gamma=0.9,
        **hyper,
    ):
        spec = BehaviorSpec("Test", (ObservationSpec("o", (3,)),), actions)
        settings = BehaviorSettings.model_validate(
            {
                "trainer_type": "ppo",
                "hyperparameters": {"batch_size": 8, "buffer_size": 32, "num_epoch": 2, **hyper},
                "network_settings": {"hidden_units": 8, "num_layers": 1, **(network or {})},
                "reward_signals": {"extrinsic": {"gamma": gamma, "strength": 2.0}},
                "max_steps": max_steps,
            }
        )
        extra = {} if statistics is None else {"statistics": statistics}
        return OpenedPPO(TrainerContext("Test", settings, spec, seed=seed, **extra))

    return make


@pytest.fixture
def make_batch():
    def make(lengths, actions=DISCRETE, seed=0):
        random = np.random.default_rng(seed)
        n, k = sum(lengths), len(lengths)
        rows = {
            "obs_0": random.normal(size=(n, 3)).astype(np.float32),
            "rewards": random.normal(size=n).astype(np.float32),
            "log_probs": -random.random((n, actions.log_prob_size)).astype(np.float32),
        }
        if actions.continuous_size:
            rows["continuous_actions"] = random.normal(size=(n, actions.continuous_size)).astype(np.float32)
        if actions.discrete_branches:
            rows["discrete_actions"] = random.integers(
                0, actions.discrete_branches, (n, len(actions.discrete_branches))
            )
        if actions.masked:
            rows["action_masks"] = np.ones((n, actions.mask_size), np.bool_)
        ended = random.integers(0, 3, k)
        trajectories = {
            "lengths": np.array(lengths, np.int32),
            "agent_ids": np.arange(100, 100 + k),
            "episode_ids": np.arange(k),
            "terminated": ended == 1,
            "truncated": ended == 2,
            "next_obs_0": random.normal(size=(k, 3)).astype(np.float32),
            "credits": np.array(lengths, np.int32),
        }
        return TrajectoryBatch("Test", 0, rows, trajectories)

    return make


@pytest.fixture
def recorded_statistics():
    return Reported()
