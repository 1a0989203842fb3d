"""What the trainer gives to its update and to reward signals that learn: rewards, discounts, noise, rows."""

import numpy as np
import pytest
from opened_trainers import opened_trainer_of
from trainer_samples import CONTINUOUS, VECTOR, experience

from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.design import design_of

MEMORY = {"memory_size": 4, "sequence_length": 4}


def make_trainer(*, hyperparameters=None, **settings):
    small = {"batch_size": 8, "steps_per_update": 4, **(hyperparameters or {})}
    return opened_trainer_of("sac", BehaviorSpec("Test", (VECTOR,), CONTINUOUS), hyperparameters=small, **settings)


def make_batch(trainer, lengths):
    design = design_of(trainer.context.spec, trainer.context.settings)
    return experience(trainer.context.spec, lengths, memory_size=design.memory_size, squashed=True)


def spied(trainer):
    """What the update is given, as it is given."""
    seen, step = [], trainer.update.step

    def spy(batch, rewards, discounts, noise, learning_rate, share):
        seen.append((batch, rewards, discounts, noise, learning_rate))
        return step(batch, rewards, discounts, noise, learning_rate, share)

    trainer.update.step = spy
    return seen


def test_rewards_are_scaled_and_discounted_by_signal():
    signals = {"extrinsic": {"gamma": 0.9, "strength": 2.0}, "rnd": {"gamma": 0.5, "strength": 3.0}}
    trainer = make_trainer(reward_signals=signals, hyperparameters={"steps_per_update": 24, "batch_size": 24})
    batch = make_batch(trainer, [2] * 12)
    terminated, truncated = np.zeros((2, 24), np.bool_)
    terminated[1::2], truncated[1::2] = batch.terminated, batch.truncated
    seen = spied(trainer)
    trainer.add(batch)
    trainer.learn()
    ((_, rewards, discounts, _, _),) = seen
    vectors = seen[0][0].critic_inputs.vectors.numpy()
    rows = [int(np.flatnonzero((batch.rows["obs_0"] == vector).all(axis=1))[0]) for vector in vectors]
    np.testing.assert_allclose(rewards[:, 0], 2.0 * batch.rewards[rows], rtol=1e-6)
    assert (rewards[:, 1] > 0).all()
    assert terminated[rows].any() and truncated[rows].any(), "both kinds of ending are among the rows drawn"
    np.testing.assert_allclose(discounts[:, 0], np.where(terminated[rows], 0.0, 0.9), rtol=1e-6)
    np.testing.assert_allclose(discounts[:, 1], 0.5)


def test_actions_are_drawn_by_standard_normal_noise_that_is_new_for_each_update():
    trainer = make_trainer(hyperparameters={"batch_size": 64, "steps_per_update": 2})
    seen = spied(trainer)
    trainer.add(make_batch(trainer, [64]))
    trainer.learn()
    noise = np.stack([each[3].numpy() for each in seen])
    assert noise.shape == (32, 2 * 64, 2)  # for the rows and for what comes next, two actions each
    assert len(np.unique(noise)) > 0.99 * noise.size
    # Of 8192 numbers: the mean is within 0.04 and the deviation within 0.03 of a standard normal's in 999 of 1000.
    assert abs(noise.mean()) < 0.04
    assert abs(noise.std() - 1.0) < 0.03
    np.testing.assert_allclose([(abs(noise) < limit).mean() for limit in (1, 2, 3)], [0.683, 0.954, 0.997], atol=0.02)


def test_the_learning_rate_follows_its_schedule():
    trainer = make_trainer(
        max_steps=48,
        hyperparameters={"learning_rate_schedule": "linear", "learning_rate": 1e-3, "steps_per_update": 24},
    )
    seen = spied(trainer)
    trainer.add(make_batch(trainer, [24]))
    trainer.learn()
    assert seen[0][4] == pytest.approx(5e-4, rel=1e-5)


def test_a_batch_of_sequences_has_batch_size_rows():
    trainer = make_trainer(network_settings={"memory": MEMORY}, hyperparameters={"steps_per_update": 24})
    seen = spied(trainer)
    trainer.add(make_batch(trainer, [12, 12]))
    trainer.learn()
    batch, rewards, _, noise, _ = seen[0]
    assert len(rewards) == len(noise) == len(batch.continuous) == 8
    assert batch.actor_inputs.memories.shape == (2, 4)


def test_signals_of_a_policy_with_memory_learn_from_no_padding():
    trainer = make_trainer(reward_signals={"extrinsic": {}, "rnd": {}}, network_settings={"memory": MEMORY})
    rnd, learned = trainer.signal("rnd"), []
    learn = rnd.learn

    def watched(transitions):
        learned.append(transitions)
        return learn(transitions)

    rnd.learn = watched
    batch = make_batch(trainer, [3] * 4)  # each a sequence of four with one row of padding
    trainer.add(batch)
    trainer.learn()
    assert [len(transitions.rewards) for transitions in learned] == [
        9,
        9,
        9,
    ]  # three sequences of three: nearest to a batch of 8
    for transitions in learned:
        for vector, reward in zip(transitions.inputs.vectors.numpy(), transitions.rewards, strict=True):
            (row,) = np.flatnonzero((batch.rows["obs_0"] == vector).all(axis=1))
            assert reward == batch.rewards[row]
