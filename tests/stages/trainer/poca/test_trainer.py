"""The whole trainer: what it keeps over a resume, what it reports, what it refuses."""

import logging

import numpy as np
import pytest
from group_samples import SPEC, Piece, batch_of
from opened_trainers import opened_trainer_of
from replay_world import Every
from trainer_samples import CONTINUOUS, VECTOR, Reported, all_weights, experience, flat_weights, trainer_of

from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError

GROUPED = BehaviorSpec("Test", (VECTOR,), CONTINUOUS, grouped=True)
MEMORY = {"memory_size": 8, "sequence_length": 4}


def learn(trainer, seeds, memory_size=0):
    for seed in seeds:
        trainer.add(experience(GROUPED, [16, 12, 9], seed, memory_size))
        while trainer.ready():
            trainer.learn()


@pytest.mark.lengthy
@pytest.mark.parametrize("memory", [None, MEMORY])
def test_a_resumed_trainer_is_bit_for_bit_the_one_that_was_never_interrupted(memory):
    size = memory["memory_size"] if memory else 0

    def made(seed):
        settings = {"memory": memory, "normalize": True}
        return opened_trainer_of("poca", GROUPED, seed, network_settings=settings, hyperparameters={"buffer_size": 64})

    whole, resumed = made(1), made(2)
    learn(whole, range(3), size)
    assert len(whole.buffer), "rows wait in the buffer"
    resumed.load_state_dict(whole.state_dict())
    for trainer in (whole, resumed):
        learn(trainer, range(3, 8), size)
    np.testing.assert_array_equal(flat_weights(whole), flat_weights(resumed))
    np.testing.assert_array_equal(all_weights(whole), all_weights(resumed))
    assert whole.version == resumed.version > 2


def test_a_resumed_trainer_has_no_mates_for_older_rows(make_trainer):
    """Ticks and the actors' numbers then restart at 0."""
    before, after = (Piece(agent, 0, [1], [0], [0], [0], 2) for agent in (1, 2))
    whole = make_trainer()
    whole.add(batch_of([before]))
    resumed = make_trainer()
    resumed.load_state_dict(whole.state_dict())
    again = make_trainer()
    again.load_state_dict(resumed.state_dict())
    for trainer in (resumed, again):
        trainer.add(batch_of([after]))
        assert trainer.prepare().rewards.tolist() == [[0], [0]]
        assert trainer.buffer.trajectories["sources"][0] < 0 == trainer.buffer.trajectories["sources"][1]


def test_losses_and_estimates_of_value_and_baseline_are_reported():
    reported = Reported()
    learn(trainer_of("poca", GROUPED, statistics=reported), range(2))
    names = {
        *("Losses/Policy Loss", "Losses/Value Loss", "Losses/Baseline Loss", "Policy/Entropy"),
        *("Policy/Extrinsic Value Estimate", "Policy/Extrinsic Baseline Estimate"),
    }
    assert names <= reported.values.keys()
    assert all(np.isfinite(values).all() for values in reported.values.values())


def test_a_group_s_reward_that_is_not_finite_is_refused_by_name(make_trainer):
    with pytest.raises(NotFiniteError, match="agent 3, episode 0: group_rewards is not finite at step 1"):
        make_trainer().add(batch_of([Piece(3, 0, [1, 2], [0, 0], [0, 0], [0, np.inf], 3)]))


def test_poca_without_groups_recommends_ppo(caplog):
    with caplog.at_level(logging.WARNING):
        trainer_of("poca", BehaviorSpec("Test", (VECTOR,), CONTINUOUS))
    assert "this environment has no groups, so each agent learns separately; ppo does the same faster" in caplog.text
    caplog.clear()
    trainer_of("poca", GROUPED)
    assert not caplog.records


def test_ppo_counts_what_its_group_gets_as_an_agent_s_own_reward():
    trainer = opened_trainer_of("ppo", SPEC)
    batch = batch_of([Piece(1, 0, [1, 2], [0, 0], [1, 2], [10, 20], 3)])
    trainer.add(batch)
    assert trainer.buffer.rows["rewards"].tolist() == [11, 22]
    assert batch.rewards.tolist() == [1, 2], "others may read the message too"


def test_sac_counts_what_its_group_gets_as_an_agent_s_own_reward():
    trainer = opened_trainer_of("sac", GROUPED)
    batch = experience(GROUPED, [16], 1, squashed=True)
    trainer.add(batch)
    kept = trainer.memory.sample(16, Every()).columns["rewards"]
    np.testing.assert_array_equal(kept, batch.rewards + batch.rows["group_rewards"])
    assert np.abs(batch.rows["group_rewards"]).min() > 0


@pytest.mark.lengthy
def test_the_critic_learns_to_tell_what_a_group_is_worth():
    """Two agents see the sum's halves; the reward is their product, which neither sees alone."""
    trainer = opened_trainer_of(
        "poca",
        SPEC,
        hyperparameters={"batch_size": 64, "buffer_size": 128, "num_epoch": 4, "learning_rate": 1e-2},
        network_settings={"hidden_units": 32},
        max_steps=10**6,
    )
    random, losses = np.random.default_rng(0), []
    for _ in range(20):
        signs = random.choice([-1.0, 1.0], (64, 2))
        pieces = [
            Piece(agent, 0, [signs[g, agent]], [0], [0], [signs[g].prod()], 0, "terminated", group=g + 1)
            for g in range(64)
            for agent in (0, 1)
        ]
        trainer.add(batch_of(pieces))
        prepared = trainer.prepare()
        losses.append(float(np.square(prepared.values.values - prepared.rewards).mean()))
        trainer.learn()
    assert losses[0] > 0.5
    assert losses[-1] < 0.05
