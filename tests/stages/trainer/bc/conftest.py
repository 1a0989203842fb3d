"""Small trainers that imitate, and experts for them."""

import numpy as np
import pytest
from trainer_samples import Reported, experience

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer.bc import BCTrainer
from headrace.stages.trainer.protocol import TrainerContext

BOTH = ActionSpec(2, (3,))
VECTOR = (ObservationSpec("vector", (3,)),)


@pytest.fixture
def statistics():
    return Reported()


@pytest.fixture
def make_trainer(statistics):
    def make(actions=BOTH, seed=0, observations=VECTOR, teacher_squashed=False, **parts):
        spec = BehaviorSpec("Test", observations, actions)
        settings = {
            "trainer_type": "bc",
            "hyperparameters": {
                "demo_path": "demos",
                "batch_size": 16,
                "buffer_size": 64,
                "learning_rate": 1e-2,
                **parts.pop("hyperparameters", {}),
            },
            "network_settings": {"hidden_units": 8, "num_layers": 1, **parts.pop("network_settings", {})},
            **parts,
        }
        context = TrainerContext(
            *("Test", BehaviorSettings.model_validate(settings), spec),
            seed=seed,
            teacher_squashed=teacher_squashed,
            statistics=statistics,
        )
        return BCTrainer(context)

    return make


@pytest.fixture
def make_batch():
    """Trajectories of an expert that follows a rule; each is an episode of its own, numbered from `first`."""

    def make(lengths, actions=BOTH, seed=0, first=0, observations=VECTOR, **columns):
        spec = BehaviorSpec("Test", observations, actions)
        batch = experience(spec, list(lengths), seed)
        episodes = np.arange(first, first + len(lengths))
        vectors = batch.rows["obs_0"].reshape(batch.num_rows, -1)
        given = {"episode_ids": episodes, "agent_ids": np.zeros(len(lengths), np.int64)}
        if actions.continuous_size:
            given["continuous_actions"] = 3 * np.clip(vectors[:, : actions.continuous_size], -1, 1)
        if actions.discrete_branches:
            sizes = actions.discrete_branches
            given["discrete_actions"] = np.stack([vectors[:, :n].argmax(axis=1) for n in sizes], axis=1).astype(
                np.int32
            )
        return batch.replace(**{**given, **columns})

    return make
