import numpy as np
import pytest
import torch
from trainer_samples import VECTOR, demonstrations, trainer_of

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.numpy_policy import NumpyPolicy
from headrace.stages.policy.observations import Normalizer
from headrace.stages.trainer.ppo import PPOTrainer, advantages
from headrace.stages.trainer.protocol import TrainerContext

HYBRID = ActionSpec(2, (3, 2), masked=True)


def test_a_trainer_is_ready_at_buffer_size_rows(make_trainer, make_batch):
    trainer = make_trainer()
    trainer.add(make_batch([16, 15]))
    assert not trainer.ready()
    trainer.add(make_batch([7]))
    assert trainer.ready()
    assert trainer.learn() == 32
    assert (trainer.step, trainer.version, trainer.rows_per_update) == (38, 1, 32)
    assert not trainer.ready()
    trainer.add(make_batch([26]))
    assert trainer.ready(), "6 rows have waited"


def test_a_minibatch_larger_than_the_buffer_is_the_buffer(make_trainer, make_batch):
    weights = []
    for batch_size in (32, 1000):
        trainer = make_trainer(batch_size=batch_size)
        trainer.add(make_batch([32]))
        trainer.learn()
        weights.append(trainer.policy().weights)
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize("actions", [ActionSpec(2), ActionSpec(0, (3,)), HYBRID], ids=["gauss", "discrete", "hybrid"])
@pytest.mark.parametrize("shared", [False, True])
def test_learning_changes_the_policy_and_leaves_it_loadable(make_trainer, make_batch, actions, shared):
    trainer = make_trainer(actions, network={"normalize": True}, shared_critic=shared)
    untrained = trainer.policy()
    trainer.add(make_batch([20, 20], actions))
    trainer.learn()
    update = trainer.policy()
    assert (untrained.version, update.version, update.step, update.behavior_id) == (0, 1, 40, "Test")
    assert not np.array_equal(update.weights, untrained.weights)
    policy = NumpyPolicy(design_of(trainer.context.spec, trainer.context.settings))
    policy.load(update)
    decision = policy.act((np.zeros((4, 3), np.float32),), None, np.random.default_rng(0))
    assert np.isfinite(decision.columns["log_probs"]).all()


def test_a_policy_once_published_does_not_change(make_trainer, make_batch):
    trainer = make_trainer()
    update = trainer.policy()
    kept = update.weights.copy()
    trainer.add(make_batch([32]))
    trainer.learn()
    np.testing.assert_array_equal(update.weights, kept)


def test_arrays_of_a_batch_are_copied(make_trainer, make_batch):
    first, second = make_trainer(), make_trainer()
    batch = make_batch([32])
    for trainer in (first, second):
        trainer.add(batch.copy() if trainer is first else batch)
    for column in (*batch.rows.values(), *batch.trajectories.values()):
        column[...] = 0
    first.learn()
    second.learn()
    np.testing.assert_array_equal(first.policy().weights, second.policy().weights)


def test_arrays_of_a_batch_are_not_changed(make_trainer, make_batch):
    batch = make_batch([20, 12], HYBRID)
    for column in (*batch.rows.values(), *batch.trajectories.values()):
        column.flags.writeable = False
    trainer = make_trainer(HYBRID, network={"normalize": True})
    trainer.add(batch)
    assert trainer.learn() == 32


@pytest.mark.parametrize("over", ["buffer", "minibatch", "none"])
def test_returns_and_advantages_come_from_the_critics_values_and_scaled_rewards(make_trainer, make_batch, over):
    trainer = make_trainer(lambd=0.8, decoupled=False, advantage_normalization=over)
    batch = make_batch([5, 20, 7], seed=3)
    trainer.add(batch)
    minibatch = unshuffled(trainer)
    values = critic_values(trainer, batch.rows["obs_0"])
    expected = advantages(
        2.0 * batch.rewards.astype(np.float64)[:, None],
        values,
        critic_values(trainer, batch.trajectories["next_obs_0"]),
        batch.lengths,
        batch.terminated[:, None],
        np.array([0.9]),
        0.8,
    )
    np.testing.assert_allclose(minibatch.returns.numpy(), expected + values, rtol=1e-5, atol=1e-6)
    deviation = {"buffer": expected.std(), "minibatch": expected.std(ddof=1), "none": 1.0}[over]
    standard = (expected - (0.0 if over == "none" else expected.mean())) / deviation
    np.testing.assert_allclose(minibatch.advantages.numpy(), standard, rtol=1e-5, atol=1e-5)


def unshuffled(trainer):
    """All that the trainer holds as one minibatch."""
    rollout = trainer.prepare().rollout
    (minibatches,) = rollout.epochs(1, len(rollout.block.floats), _Unshuffled())
    return minibatches[0]


def critic_values(trainer, vectors):
    return trainer.network(Inputs(torch.from_numpy(vectors)))[1].detach().numpy().astype(np.float64)


class _Unshuffled:
    def permutation(self, n):
        return np.arange(n)


@pytest.mark.parametrize(("per_dimension", "columns"), [(False, 1), (True, 4)])
def test_the_ratio_is_of_the_joint_action_unless_set_per_dimension(make_trainer, make_batch, per_dimension, columns):
    trainer = make_trainer(HYBRID, ratio_per_dimension=per_dimension, decoupled=False)
    batch = make_batch([32], HYBRID)
    trainer.add(batch)
    minibatch = unshuffled(trainer)
    log_probs = batch.rows["log_probs"]
    expected = log_probs if per_dimension else log_probs.sum(axis=1, keepdims=True)
    assert minibatch.old_log_probs.shape[1] == columns
    np.testing.assert_allclose(minibatch.old_log_probs.numpy(), expected, rtol=1e-6)


def test_the_normalizer_counts_arriving_rows_and_is_part_of_the_policy(make_trainer, make_batch):
    trainer = make_trainer(network={"normalize": True})
    batch = make_batch([6, 4])
    trainer.add(batch)
    reference = Normalizer(3)
    reference.update(batch.rows["obs_0"])
    tensors = trainer.policy().tensors()
    np.testing.assert_array_equal(tensors["normalizer.mean"], reference.tensors()[0])
    np.testing.assert_array_equal(tensors["normalizer.inverse_std"], reference.tensors()[1])


def test_a_regularised_policy_stays_nearer_to_its_anchor(make_trainer, make_batch, recorded_statistics):
    batches, kls = [make_batch([32], seed=seed) for seed in range(6)], {}
    for coefficient in (1e-6, 5.0):
        regularization = {"coefficient": coefficient, "anchor_steps": 10**9}
        trainer = make_trainer(statistics=recorded_statistics, learning_rate=0.02, regularization=regularization)
        run(trainer, batches)
        kls[coefficient] = recorded_statistics.values.pop("Policy/Anchor KL")
    assert min(kls[1e-6]) >= 0
    assert kls[5.0][-1] < 0.2 * kls[1e-6][-1]


def test_the_anchor_slows_down_with_the_learning_rate(make_trainer, make_batch):
    trainer = make_trainer(max_steps=64, regularization={"anchor_steps": 100})
    first = {name: tensor.copy() for name, tensor in trainer.state_dict()["weights"].items()}
    run(trainer, [make_batch([32])])  # at half of the schedule, when it learns
    state = trainer.state_dict()
    for name, before in first.items():
        expected = before + (1 - np.exp(-32 * 0.5 / 100)) * (state["weights"][name] - before)
        np.testing.assert_allclose(state["anchor"][name], expected, rtol=1e-4, atol=1e-6)


def test_regularization_that_was_changed_before_a_resume_is_logged(make_trainer, make_batch, caplog):
    plain, regularized = make_trainer(), make_trainer(regularization={})
    run(regularized, [make_batch([32])])
    with_anchor, without = regularized.state_dict(), plain.state_dict()
    regularized.load_state_dict(without)
    plain.load_state_dict(with_anchor)
    assert caplog.messages == [
        "Test: hyperparameters.regularization is now on; it was off until this checkpoint",
        "Test: hyperparameters.regularization is now off; it was on until this checkpoint",
    ]
    assert regularized.state_dict()["anchor"] is None, "it begins where the policy is"


def test_a_policy_with_averaged_weights_is_exported_while_the_newest_weights_act_and_learn(make_trainer, make_batch):
    batches = [make_batch([32], seed=seed) for seed in range(4)]
    plain, averaged = make_trainer(regularization={}), make_trainer(regularization={"averaged_share": 1.0})
    policies = []
    for batch in batches:
        for trainer in (plain, averaged):
            run(trainer, [batch])
        policies.append(plain.policy().weights)
        np.testing.assert_array_equal(averaged.policy().weights, policies[-1])
        np.testing.assert_array_equal(plain.exported_policy().weights, policies[-1])
        np.testing.assert_allclose(averaged.exported_policy().weights, np.mean(policies, axis=0), atol=1e-6)


def test_explained_variance_is_that_of_the_returns_by_the_critic_before_the_update(
    make_trainer, make_batch, recorded_statistics
):
    trainer = make_trainer(statistics=recorded_statistics, gamma=0.0)
    batch = make_batch([32])
    trainer.add(batch)
    returns = 2.0 * batch.rows["rewards"].astype(np.float64)  # all that a critic without a future has to know
    errors = returns - critic_values(trainer, batch.rows["obs_0"])[:, 0]
    trainer.learn()
    (found,) = recorded_statistics.values["Policy/Extrinsic Explained Variance"]
    assert found == pytest.approx(1.0 - errors.var() / returns.var(), rel=1e-4)


def test_epochs_end_once_the_policy_has_gone_beyond_target_kl_and_nothing_changes_before(
    make_trainer, make_batch, recorded_statistics
):
    settings = {"num_epoch": 6, "learning_rate": 3e-2, "learning_rate_schedule": "constant"}
    batch = make_batch([32])

    def learned(**more):
        trainer = make_trainer(**{**settings, **more})
        trainer.add(batch)
        trainer.learn()
        return trainer

    learned(statistics=recorded_statistics, target_kl=0.02)
    (epochs,) = recorded_statistics.values["Policy/Epochs"]
    assert 1 < epochs < 6
    assert recorded_statistics.values["Policy/Approximate KL"][0] > 1.5 * 0.02
    stopped, as_many = learned(target_kl=0.02), learned(num_epoch=int(epochs))
    assert np.array_equal(stopped.policy().weights, as_many.policy().weights)
    never, without = learned(target_kl=1e6), learned()
    assert np.array_equal(never.policy().weights, without.policy().weights)


def test_an_update_that_failed_leaves_the_weights_as_they_were(make_trainer, make_batch):
    trainer = make_trainer()
    before = trainer.policy().weights
    batch = make_batch([32])
    batch.rows["rewards"][3] = 1e30
    trainer.add(batch)
    with pytest.raises(NotFiniteError, match="value loss"):
        trainer.learn()
    np.testing.assert_array_equal(trainer.policy().weights, before)


def run(trainer, batches):
    for batch in batches:
        trainer.add(batch)
        if trainer.ready():
            trainer.learn()
    return trainer.policy().weights


def test_the_same_batches_give_the_same_weights_and_another_seed_others(make_trainer, make_batch):
    batches = [make_batch([10, 9], HYBRID, seed) for seed in range(8)]
    first, second, other = (run(make_trainer(HYBRID, seed=seed), batches) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("actions", "hyper"),
    [(ActionSpec(2), {}), (HYBRID, {}), (HYBRID, {"regularization": {"anchor_steps": 50, "averaged_share": 0.5}})],
    ids=["continuous", "hybrid", "regularised"],
)
def test_a_trainer_resumed_from_a_half_filled_buffer_ends_with_the_same_weights(
    make_trainer, make_batch, actions, hyper
):
    batches = [make_batch([10, 9], actions, seed) for seed in range(9)]
    original = make_trainer(actions, seed=1, network={"normalize": True}, **hyper)
    run(original, batches[:5])
    assert 0 < len(original.buffer) < 32
    resumed = make_trainer(actions, seed=99, network={"normalize": True}, **hyper)
    resumed.load_state_dict(original.state_dict())
    assert (resumed.step, resumed.version) == (original.step, original.version)
    np.testing.assert_array_equal(run(original, batches[5:]), run(resumed, batches[5:]))
    _assert_same(original.state_dict(), resumed.state_dict())


def _assert_same(first, second):
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            _assert_same(first[name], second[name])
    else:
        np.testing.assert_array_equal(first, second)


def _assert_plain(value):
    if isinstance(value, dict):
        for name, part in value.items():
            assert isinstance(name, str)
            _assert_plain(part)
    elif isinstance(value, int):
        assert value.bit_length() <= 64
    else:
        assert value is None or isinstance(value, (float, str, np.ndarray))


def test_a_state_of_another_network_is_refused_by_tensor_and_nothing_is_taken(make_trainer):
    trainer = make_trainer()
    before = trainer.policy().weights
    with pytest.raises(StageError, match=r"Test: .*expected tensor body.0.weight \(2, 3, 8\), got \(2, 3, 16\)"):
        trainer.load_state_dict(make_trainer(network={"hidden_units": 16}).state_dict())
    np.testing.assert_array_equal(trainer.policy().weights, before)


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_cloning_that_was_off_before_a_resume_and_is_on_now_is_logged(kind, tmp_path, caplog):
    spec = BehaviorSpec("Test", (VECTOR,), ActionSpec(2))
    demo = demonstrations(tmp_path / "expert.stream", spec)
    trainer = trainer_of(kind, spec, behavioral_cloning={"demo_path": str(demo)})
    caplog.clear()
    trainer.load_state_dict(trainer_of(kind, spec).state_dict())
    assert caplog.messages == ["Test: behavioral_cloning is now on; it was off until this checkpoint"]


def test_a_behaviour_without_actions_is_refused(make_trainer):
    with pytest.raises(StageError, match="neither continuous nor discrete actions"):
        make_trainer(ActionSpec())


def test_an_observation_that_no_network_takes_in_is_refused(make_trainer):
    context = make_trainer().context
    spec = BehaviorSpec("Test", (ObservationSpec("film", (4, 8, 8, 3), "uint8"),), ActionSpec(2))
    with pytest.raises(StageError, match="reshape it in the environment"):
        PPOTrainer(TrainerContext("Test", context.settings, spec))
