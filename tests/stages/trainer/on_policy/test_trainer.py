"""A subclass of PPO with other losses and advantages: its loss clips nothing."""

import numpy as np
import pytest
from trainer_samples import CONTINUOUS, DISCRETE, HYBRID, VECTOR, Reported, experience, trainer_of

from headrace.config import BehaviorSettings, OnPolicyHyperparameters
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import PPOTrainer, PPOUpdate, PreparedBuffer, evaluate_rows
from headrace.stages.trainer.protocol import TrainerContext

SPEC = BehaviorSpec("Test", (VECTOR,), HYBRID)


class PlainUpdate(PPOUpdate):
    def losses(self, batch, coefficients):
        heads, values = self.network(batch.inputs)
        log_probs, entropy = self.log_probs_and_entropy(heads, batch)
        policy, value = -(log_probs * batch.advantages).mean(), (values - batch.returns).square().mean()
        return [policy, value, entropy], log_probs - batch.old_log_probs


class PlainTrainer(PPOTrainer):
    """Advantages are returns of one step, less the values."""

    hyperparameters = OnPolicyHyperparameters

    def _make_update(self):
        signals = len(self._signals.names)
        self.critic = make_actor_critic(self._design, signals, False, self._random, self.context.device)
        return PlainUpdate(self.critic, self.context.spec, self._hyperparameters)

    def _coefficients(self):
        return Coefficients(learning_rate=1e-2, beta=0.0)

    def _prepare(self):
        rows = self._input_rows(self._buffer.observations())
        values = evaluate_rows(self.critic, rows, self._input_rows(self._buffer.observations("next_")), 64)
        rewards = self._signals.rewards(self._buffer.rows["rewards"], self._buffer, 1)
        rollout = self._rollout(rows, rewards - values.values, rewards, values)
        return PreparedBuffer(rollout, rewards, values, rewards, {})


def make(statistics=None):
    settings = BehaviorSettings.model_validate(
        {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 16, "buffer_size": 32, "num_epoch": 2},
            "network_settings": {"hidden_units": 8, "num_layers": 1, "normalize": True},
        }
    )
    extra = {} if statistics is None else {"statistics": statistics}
    context = TrainerContext("Test", settings, SPEC, **extra)
    return PlainTrainer(context)


def test_an_algorithm_of_a_subclass_with_other_losses_learns_and_reports():
    reported = Reported()
    trainer = make(reported)
    before = trainer.policy().weights.copy()
    for seed in range(2):
        trainer.add(experience(SPEC, [20, 12], seed))
        assert trainer.learn() == 32
    assert trainer.version == trainer.policy().version == 2
    assert np.isfinite(trainer.policy().weights).all()
    assert not np.array_equal(trainer.policy().weights, before)
    assert {"Losses/Policy Loss", "Losses/Value Loss", "Policy/Entropy", "Policy/Beta"} <= set(reported.values)


def test_the_bonus_may_be_of_the_summed_entropy_of_continuous_actions():
    told = {}
    for actions, summed in ((CONTINUOUS, False), (CONTINUOUS, True), (DISCRETE, True)):
        reported = Reported()
        keys = {"beta": 0.25, "beta_schedule": "constant", "summed_entropy": summed}
        spec = BehaviorSpec("Test", (VECTOR,), actions)
        trainer = trainer_of("ppo", spec, statistics=reported, hyperparameters=keys)
        trainer.add(experience(spec, [32]))
        trainer.learn()
        told[actions, summed] = reported.last("Policy/Beta")
    size = CONTINUOUS.continuous_size
    assert told == {(CONTINUOUS, False): 0.25, (CONTINUOUS, True): size * 0.25, (DISCRETE, True): 0.25}
    with pytest.raises(
        StageError,
        match="Test: hyperparameters.summed_entropy does not work if there are both continuous and discrete actions",
    ):
        trainer_of("ppo", SPEC, hyperparameters={"summed_entropy": True})
