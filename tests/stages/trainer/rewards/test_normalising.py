"""How trainers show reward signals what they are to normalise: each step once, before its reward is asked for."""

from dataclasses import replace

import numpy as np
import pytest
from opened_trainers import opened_trainer_of
from trainer_samples import CONTINUOUS, VECTOR, Reported, experience

from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.design import design_of
from headrace.stages.policy.observations import Normalizer

SIGNALS = pytest.mark.parametrize("signal", ["curiosity", "rnd"])
TRAINERS = pytest.mark.parametrize("kind", ["ppo", "poca", "sac"])
LENGTHS = [12, 9, 11]


def made(kind, signal, statistics=None, seed=0, **hyperparameters):
    spec = replace(BehaviorSpec("Test", (VECTOR,), CONTINUOUS), grouped=kind == "poca")
    network = {"hidden_units": 8, "num_layers": 1, "normalize": True}
    signals = {"extrinsic": {}, signal: {"network_settings": network}}
    return opened_trainer_of(
        kind, spec, seed, statistics, reward_signals=signals, network_settings=network, hyperparameters=hyperparameters
    )


def far_away(trainer, seed, lengths=LENGTHS):
    """Steps whose observations are around 10,000, a thousand times as far from 0 as from each other."""
    spec = trainer.context.spec
    batch = experience(spec, lengths, seed, squashed=design_of(spec, trainer.context.settings).squashed)
    seen = {"obs_0": batch.rows["obs_0"], "next_obs_0": batch.trajectories["next_obs_0"]}
    return batch.replace(**{name: column * np.float32(10.0) + np.float32(1e4) for name, column in seen.items()})


def feed(trainer, batches):
    for batch in batches:
        trainer.add(batch)
        while trainer.ready():
            trainer.learn()


@TRAINERS
@SIGNALS
def test_a_step_is_counted_once_and_before_its_reward_is_computed_or_learned_from(kind, signal):
    epochs = {} if kind == "sac" else {"num_epoch": 3}
    trainer = made(kind, signal, **epochs)
    watched = trainer.signal(signal)
    rewards, learn, known = watched.rewards, watched.learn, []

    def asked(taken):
        known.append(("asked", watched.normalizer.steps))
        return rewards(taken)

    def learns(taken):
        known.append(("learns", watched.normalizer.steps))
        return learn(taken)

    watched.rewards, watched.learn = asked, learns
    batches = [far_away(trainer, seed) for seed in range(3)]
    reference = Normalizer(3)
    for batch in batches:
        reference.update(batch.rows["obs_0"])
        known.clear()
        feed(trainer, [batch])
        assert {what for what, _ in known} == {"asked", "learns"}
        assert {steps for _, steps in known} == {reference.steps}
    state = watched.state_dict()["normalizer"]
    assert state["steps"] == 3 * sum(LENGTHS)
    for name in ("mean", "squares"):
        np.testing.assert_array_equal(state[name], reference.state_dict()[name])


@TRAINERS
def test_the_first_rewards_are_at_most_as_large_as_later_ones(kind):
    reported = Reported()
    trainer = made(kind, "rnd", reported)
    feed(trainer, (far_away(trainer, seed) for seed in range(4)))
    per_episode = reported.values["Policy/Rnd Reward"]
    assert per_episode[0] < 2.0 * max(per_episode[2:])  # of what is not normalised they are a thousand times that
