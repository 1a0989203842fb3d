"""A PPO trainer whose policy has a memory."""

import numpy as np
import pytest
import torch
from opened_trainers import OpenedPPO, opened_trainer_of
from run_configs import changed
from tensors import assert_close
from trainer_samples import experience, played

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.protocol import TrainerContext

SPEC = BehaviorSpec("Test", (ObservationSpec("v", (3,)),), ActionSpec(1, (3,)))
M = 4


def made(seed=0, normalize=True, **hyper):
    memory = {"memory_size": M, "sequence_length": 4}
    return opened_trainer_of(
        "ppo",
        SPEC,
        seed,
        network_settings={"memory": memory, "normalize": normalize},
        hyperparameters={"num_epoch": 2, **hyper},
    )


def batch_of(lengths, agents, episodes, ended, seed=0):
    batch = experience(SPEC, lengths, seed, M)
    return batch.replace(
        agent_ids=np.array(agents),
        episode_ids=np.array(episodes),
        terminated=np.zeros(len(lengths), np.bool_),
        truncated=np.array(ended),
    )


def evaluated(trainer):
    return trainer.prepare()


def test_the_critics_memory_is_carried_across_trajectories_and_updates():
    """Equal to one long evaluation: the learning rate is 0 in effect, so that updates change no weight."""
    trainer = made(normalize=False, learning_rate=1e-30, learning_rate_schedule="constant")
    batches = [
        batch_of([20, 12], [5, 6], [0, 0], [False, True], 1),
        batch_of([10, 10, 12], [6, 5, 5], [1, 0, 0], [False, False, False], 2),
    ]
    values, vectors, previous = [], [], []
    for batch in batches:
        trainer.add(batch)
        values.append(evaluated(trainer).values.values)
        vectors.append(batch.rows["obs_0"])
        previous.append(trainer.buffer.previous_action_features()[0])
        trainer.learn()
    of_agent_5 = [(0, slice(0, 20)), (1, slice(10, 20)), (1, slice(20, 32))]
    inputs = [torch.from_numpy(np.concatenate([c[i][s] for i, s in of_agent_5])) for c in (vectors, previous)]
    with torch.no_grad():
        expected, _ = trainer.network.evaluate(Inputs(inputs[0], (), inputs[1], torch.zeros(1, M), 42))
    found = np.concatenate([values[i][s] for i, s in of_agent_5])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)
    # Agent 6 begins a new episode in the second batch, with an empty memory.
    with torch.no_grad():
        anew, _ = trainer.network.evaluate(
            Inputs(torch.from_numpy(vectors[1][:10]), (), torch.from_numpy(previous[1][:10]), None, 10)
        )
    np.testing.assert_allclose(values[1][:10], anew.numpy(), rtol=1e-4, atol=1e-6)


def test_an_anchor_sees_the_rows_in_their_sequences():
    """It begins as the policy, from which nothing diverges, padded or not."""
    trainer = made(regularization={})
    trainer.add(batch_of([19, 13], [5, 6], [0, 0], [False, True]))
    (minibatches,) = evaluated(trainer).rollout.epochs(1, 16, np.random.default_rng(0))
    for each in minibatches:
        heads = trainer.update.heads(each.inputs).index_select(0, each.real)
        assert trainer.update.anchor.divergence(heads, each).item() == pytest.approx(0.0, abs=1e-6)
    trainer.learn()
    trainer.add(batch_of([19, 13], [5, 6], [1, 1], [False, True], 1))
    trainer.learn()
    assert trainer.state_dict()["anchor"].keys() == trainer.state_dict()["weights"].keys()


def test_memories_of_ended_episodes_are_discarded():
    trainer = made()
    trainer.add(batch_of([20, 12], [5, 6], [0, 0], [False, True]))
    trainer.learn()
    memories = trainer.state_dict()["critic_memories"]
    assert (memories["agents"].tolist(), memories["episodes"].tolist()) == ([5], [0])
    assert np.abs(memories["values"]).max() > 0


def test_an_update_that_failed_changes_no_memory():
    trainer = made()
    batch = batch_of([20, 12], [5, 6], [0, 0], [False, False])
    batch.rows["rewards"][3] = 1e30
    trainer.add(batch)
    with pytest.raises(Exception, match="value loss"):
        trainer.learn()
    assert not len(trainer.state_dict()["critic_memories"]["agents"])
    assert trainer.ready()


def test_a_critic_that_shares_the_actors_body_starts_from_the_recorded_memories():
    trainer = made(normalize=False, shared_critic=True)
    batch = batch_of([20, 12], [5, 5], [0, 0], [False, False])
    trainer.add(batch)
    prepared = evaluated(trainer)
    assert "critic_memories" not in trainer.state_dict()
    before = torch.from_numpy(trainer.buffer.previous_action_features()[0][20:])
    recorded = torch.from_numpy(batch.rows["memories"][20:21])
    with torch.no_grad():
        expected, _ = trainer.network.evaluate(
            Inputs(torch.from_numpy(batch.rows["obs_0"][20:]), (), before, recorded, 12)
        )
    np.testing.assert_allclose(prepared.values.values[20:], expected.numpy(), rtol=1e-4, atol=1e-6)
    (minibatches,) = prepared.rollout.epochs(1, 32, np.random.default_rng(0))
    assert all(m.critic_memories is None for m in minibatches)
    trainer.learn()


RECALL = BehaviorSpec("Recall", (ObservationSpec("cue", (1,)),), ActionSpec(0, (2,)))
RECALL_SETTINGS = {
    "trainer_type": "ppo",
    "hyperparameters": {
        "batch_size": 64,
        "buffer_size": 128,
        "learning_rate": 1e-2,
        "learning_rate_schedule": "constant",
    },
    "max_steps": 100_000,
}


def test_the_update_starts_from_the_actors_recorded_memories():
    """The log-probabilities of an untrained network are those that its policy recorded, over several sequences."""
    block = changed(RECALL_SETTINGS, {"hyperparameters__decoupled": False})
    block["network_settings"] = {"hidden_units": 8, "memory": {"memory_size": 6, "sequence_length": 3}}
    settings = BehaviorSettings.model_validate(block)
    trainer = OpenedPPO(TrainerContext("Recall", settings, RECALL, seed=1))
    trainer.add(played(trainer, RECALL, 8))
    (minibatches,) = evaluated(trainer).rollout.epochs(1, 9, np.random.default_rng(0))
    for m in minibatches:
        with torch.no_grad():
            heads, _ = trainer.network(m.inputs, m.critic_memories)
        log_probs = torch.log_softmax(heads[m.real], dim=1).gather(1, m.choices[0])
        assert_close(log_probs, m.old_log_probs, rtol=1e-5, atol=1e-6)
