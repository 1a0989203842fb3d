import numpy as np
import pytest
import torch
from opened_trainers import opened_trainer_of
from trainer_samples import Reported, experience

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.trainer.on_policy.trainer import BufferTransitions
from headrace.stages.trainer.ppo import advantages

SPEC = BehaviorSpec("Test", (ObservationSpec("v", (3,)),), ActionSpec(0, (3,)))
TWO = {"extrinsic": {"gamma": 0.9, "strength": 2.0}, "rnd": {"gamma": 0.5, "strength": 0.1}}


def made(signals=TWO, **more):
    return opened_trainer_of("ppo", SPEC, reward_signals=signals, **more)


def of_agents(batch, agents, episodes, terminated, truncated):
    columns = {"agent_ids": agents, "episode_ids": episodes, "terminated": terminated, "truncated": truncated}
    return batch.replace(**{name: np.array(column) for name, column in columns.items()})


def every_reward(trainer):
    buffer = trainer.buffer
    return trainer.signals.rewards(buffer.rows["rewards"], buffer, 1)


def test_rewards_are_the_signals_own_times_their_strength():
    trainer = made()
    batch = experience(SPEC, [10, 6])
    trainer.add(batch)
    transitions = BufferTransitions(SPEC, trainer.buffer, "cpu").take(np.arange(16))
    rnd = trainer.signal("rnd")
    found = every_reward(trainer)
    np.testing.assert_allclose(found[:, 0], 2.0 * batch.rewards, rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], 0.1 * rnd.rewards(transitions).astype(np.float64), rtol=1e-5)
    assert (found[:, 1] > 0).all()


def test_a_signal_that_ignores_termination_bootstraps_from_what_was_observed_after_it():
    trainer = made(hyperparameters={"decoupled": False})
    batch = of_agents(experience(SPEC, [20, 12]), [1, 2], [0, 0], [True, False], [False, True])
    trainer.add(batch)
    prepared = trainer.prepare()
    rewards = prepared.rewards
    (minibatches,) = prepared.rollout.epochs(1, 32, _Unshuffled())
    _, values = trainer.network(minibatches[0].inputs)
    _, finals = trainer.network(
        minibatches[0].inputs._replace(vectors=torch.from_numpy(batch.trajectories["next_obs_0"]))
    )
    values, finals = (each.detach().numpy().astype(np.float64) for each in (values, finals))
    expected = advantages(
        rewards,
        values,
        finals,
        np.array([20, 12]),
        np.array([[True, False], [False, False]]),
        np.array([0.9, 0.5]),
        0.95,
    )
    np.testing.assert_allclose(minibatches[0].returns.numpy(), expected + values, rtol=1e-4, atol=1e-5)
    mean = expected.mean(axis=1)
    standard = (mean - mean.mean()) / mean.std()
    np.testing.assert_allclose(minibatches[0].advantages[:, 0].numpy(), standard, rtol=1e-4, atol=1e-5)


class _Unshuffled:
    def permutation(self, n):
        return np.arange(n)


def test_the_last_observation_replaces_an_invalid_one_after_termination():
    trainer = made()
    batch = of_agents(experience(SPEC, [20, 12]), [1, 2], [0, 0], [True, True], [False, False])
    batch.trajectories["next_obs_0"][0] = np.nan
    trainer.add(batch)
    kept = trainer.buffer.trajectories["next_vectors"]
    np.testing.assert_array_equal(kept[0], batch.rows["obs_0"][19])
    np.testing.assert_array_equal(kept[1], batch.trajectories["next_obs_0"][1])
    assert trainer.learn() == 32


def test_signals_learn_once_from_each_minibatch():
    trainer = made(hyperparameters={"batch_size": 8, "num_epoch": 3})
    trainer.add(experience(SPEC, [20, 12]))
    trainer.learn()
    assert trainer.signal("rnd").updates == 3 * 4


def test_signals_of_a_policy_with_memory_learn_from_no_padding():
    memory = {"memory": {"memory_size": 4, "sequence_length": 8}}
    trainer = made(hyperparameters={"buffer_size": 36}, network_settings=memory)
    seen = []
    rnd = trainer.signal("rnd")
    learn = rnd.learn

    def watched(transitions):
        seen.append(len(transitions.rewards))
        return learn(transitions)

    rnd.learn = watched
    trainer.add(experience(SPEC, [9, 9, 9, 9], memory_size=4))
    trainer.learn()
    assert sum(seen) == 36
    assert len(seen) == 4


def test_a_signals_reward_is_reported_over_whole_episodes_even_across_buffers():
    reported = Reported()
    trainer = made(statistics=reported)
    pieces = [
        of_agents(experience(SPEC, [10, 22], 1), [1, 2], [0, 0], [False, True], [False, False]),
        of_agents(experience(SPEC, [10, 10, 12], 2), [1, 2, 1], [0, 1, 0], [False, False, False], [False, False, True]),
    ]
    rewards = []
    for batch in pieces:
        trainer.add(batch)
        rewards.append(every_reward(trainer)[:, 1])
        trainer.learn()
    first, second = rewards
    expected = [first[10:].sum(), first[:10].sum() + second[:10].sum() + second[20:].sum()]
    np.testing.assert_allclose(reported.values["Policy/Rnd Reward"], expected, rtol=1e-5)
    assert reported.hows["Policy/Rnd Reward"] == "mean"
    assert len(trainer.signals.sums) == 1
    assert {"Policy/Extrinsic Value Estimate", "Policy/Rnd Value Estimate", "Losses/RND Loss"} <= set(reported.values)
    assert "Policy/Extrinsic Reward" not in reported.values  # the trainer stage does that


def test_a_behaviour_may_do_without_the_environments_reward():
    trainer = made({"rnd": {}})
    trainer.add(experience(SPEC, [20, 12]))
    assert trainer.learn() == 32


def test_a_state_with_other_signals_is_refused():
    state = made().state_dict()
    state["weights"] = made({"rnd": {}, "curiosity": {}}).state_dict()["weights"]
    with pytest.raises(
        StageError, match="signals are curiosity, rnd, but the saved state was made with extrinsic, rnd"
    ):
        made({"rnd": {}, "curiosity": {}}).load_state_dict(state)


def test_explained_variance_is_1_for_a_perfect_critic_0_for_a_constant_one_and_left_out_without_variance():
    cases = {(1.0, 3.0): 1.0, (7.0, 7.0): 0.0, (3.0, 1.0): -3.0}
    # The third guesses the wrong way round: errors of -2 and 2 have 4 times the variance of 1 and 3.
    for guessed, expected in cases.items():
        values, targets = np.array([guessed, (1.0, 2.0)]).T, np.array([[1.0, 5.0], [3.0, 5.0]])
        found = made().signals.value_statistics({}, values, targets)
        assert found == {"Policy/Extrinsic Explained Variance": pytest.approx(expected)}
