"""The trainer that imitates: what it learns, what it never learns from, what it says about it, and resuming."""

import logging

import numpy as np
import pytest
from trainer_samples import IMAGE, flat_weights

from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.trainer.bc import held_out

DISCRETE = ActionSpec(0, (3,))
MEMORY = {"memory": {"sequence_length": 5, "memory_size": 8}}


def teach(trainer, make_batch, rounds, lengths=(16,) * 20, shuffled=None, **parts):
    """The same episodes over and over, as demonstrations come by."""
    batch = make_batch(lengths, trainer.context.spec.actions, **parts)
    if shuffled is not None:
        order = np.random.default_rng(shuffled).permutation(batch.num_rows)
        batch = batch.replace(discrete_actions=batch.rows["discrete_actions"][order])
    for _ in range(rounds):
        trainer.add(batch)
        while trainer.ready():
            trainer.learn()


@pytest.mark.lengthy
def test_an_expert_is_imitated_and_the_accuracy_is_reported(make_trainer, make_batch, statistics):
    fast = {"num_epoch": 3, "learning_rate": 3e-2}
    trainer = make_trainer(hyperparameters=fast, network_settings={"hidden_units": 32, "normalize": True})
    teach(trainer, make_batch, 20)
    assert statistics.last("Policy/Held-out Accuracy") > 0.9
    assert statistics.last("Policy/Held-out Error") < 0.02
    for name in ("Policy/Held-out Log Likelihood", "Policy/Training Log Likelihood"):
        assert statistics.last(name) > statistics.values[name][0] + 1
    assert statistics.last("Losses/Cloning Loss") < statistics.values["Losses/Cloning Loss"][0]
    assert statistics.last("Policy/Learning Rate") == 3e-2
    assert statistics.last("Policy/Gradient Norm") > 0
    policy = make_policy(design_of(trainer.context.spec, trainer.context.settings))
    policy.load(trainer.policy())
    fresh = make_batch([200], seed=9)
    decision = policy.act((fresh.rows["obs_0"],), None, np.random.default_rng(0), deterministic=True)
    expected = np.clip(fresh.rows["obs_0"][:, :2], -1, 1)
    assert np.abs(decision.actions.continuous - expected).mean() < 0.1
    assert (decision.actions.discrete == fresh.rows["discrete_actions"]).mean() > 0.9


@pytest.mark.lengthy
def test_shuffled_actions_are_predicted_worse(make_trainer, make_batch, statistics):
    found = []
    for shuffled in (None, 1):
        trainer = make_trainer(DISCRETE, hyperparameters={"learning_rate": 3e-2})
        teach(trainer, make_batch, 10, shuffled=shuffled)
        found.append((statistics.last("Policy/Held-out Log Likelihood"), statistics.last("Policy/Held-out Accuracy")))
    assert found[0][0] > found[1][0] + 0.5
    assert found[0][1] > found[1][1] + 0.3


def test_a_teachers_actions_are_read_in_its_own_range(make_trainer, make_batch, statistics):
    batch = make_batch([64], ActionSpec(2))
    squashed = batch.replace(continuous_actions=batch.rows["continuous_actions"] / 3)
    weights = []
    for teacher_squashed, given in ((False, batch), (True, squashed)):
        trainer = make_trainer(ActionSpec(2), teacher_squashed=teacher_squashed, hyperparameters={"held_out": 0})
        trainer.add(given)
        trainer.learn()
        weights.append(flat_weights(trainer))
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-5)


def test_held_out_episodes_do_not_change_the_weights(make_trainer, make_batch):
    batch = make_batch([8] * 30)
    aside = held_out(batch.trajectories["agent_ids"], batch.trajectories["episode_ids"], 0, 0.3)
    assert 0 < aside.sum() < 30
    rows = np.repeat(aside, 8)
    changed = {name: column.copy() for name, column in batch.rows.items()}
    changed["obs_0"][rows] += 50
    changed["continuous_actions"][rows] = -1
    changed["discrete_actions"][rows] = 2
    weights = []
    for given in (batch, batch.replace(**changed), batch.select(~aside)):
        trainer = make_trainer(hyperparameters={"held_out": 0.3}, network_settings={"normalize": True})
        trainer.add(given)
        trainer.learn()
        weights.append(flat_weights(trainer))
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])


@pytest.mark.lengthy
def test_an_episode_is_held_out_in_all_its_pieces_and_each_time(make_trainer, make_batch, statistics):
    trainer = make_trainer(DISCRETE, hyperparameters={"held_out": 0.5, "buffer_size": 16})
    # Episodes that are held out have choice 2 everywhere, the others choice 0: one that strayed would show.
    for seed in range(60):
        batch = make_batch([2] * 8, DISCRETE, seed=seed, episode_ids=np.arange(8) // 2)
        aside = held_out(batch.trajectories["agent_ids"], batch.trajectories["episode_ids"], 0, 0.5)
        assert 0 < aside.sum() < 8
        trainer.add(batch.replace(discrete_actions=np.repeat(np.where(aside, 2, 0), 2)[:, None]))
        trainer.learn()
    assert statistics.last("Policy/Held-out Accuracy") == 0
    assert statistics.last("Policy/Training Log Likelihood") > -0.1


def test_held_out_numbers_are_over_the_newest_buffer_of_held_out_steps(make_trainer, make_batch, statistics):
    trainer = make_trainer(DISCRETE, hyperparameters={"held_out": 0.5, "buffer_size": 16, "learning_rate": 1e-9})
    trainer.add(make_batch([4] * 100, DISCRETE))
    trainer.learn()
    old = statistics.last("Policy/Held-out Log Likelihood")
    newest = make_batch([4] * 100, DISCRETE, seed=3, first=100)
    aside = held_out(newest.trajectories["agent_ids"], newest.trajectories["episode_ids"], 0, 0.5)
    trainer.add(newest)
    trainer.learn()
    found = statistics.last("Policy/Held-out Log Likelihood")
    only = np.flatnonzero(aside)[-4:]  # four episodes of four steps are a buffer
    other = make_trainer(DISCRETE, hyperparameters={"held_out": 0.5, "buffer_size": 16, "learning_rate": 1e-9})
    other.add(newest.select(np.isin(np.arange(100), only)))
    other.learn()
    assert found == pytest.approx(statistics.last("Policy/Held-out Log Likelihood"), abs=1e-5)
    assert found != old


def test_held_out_rows_count_towards_the_buffer_size(make_trainer, make_batch):
    trainer = make_trainer(hyperparameters={"held_out": 0.5, "buffer_size": 64})
    trainer.add(make_batch([6] * 10))
    assert not trainer.ready()
    trainer.add(make_batch([6], first=10))
    assert trainer.ready()
    assert (trainer.step, trainer.version) == (66, 0)
    assert trainer.learn() == 66
    assert (trainer.step, trainer.version, trainer.ready()) == (66, 1, False)
    assert trainer.rows_per_update == 64


def test_an_update_of_only_held_out_steps_learns_nothing_and_warns(make_trainer, make_batch, caplog):
    trainer = make_trainer(hyperparameters={"held_out": 0.9})
    before = flat_weights(trainer)
    batch = make_batch([8] * 20)
    aside = held_out(batch.trajectories["agent_ids"], batch.trajectories["episode_ids"], 0, 0.9)
    trainer.add(batch.select(aside))
    with caplog.at_level(logging.WARNING):
        assert trainer.learn() == 8 * aside.sum()
    assert "steps are held out, and 0 are left to learn from" in caplog.text
    np.testing.assert_array_equal(before, flat_weights(trainer))


def test_too_few_episodes_to_hold_out_cause_one_warning(make_trainer, make_batch, statistics, caplog):
    trainer = make_trainer(hyperparameters={"held_out": 1e-6})
    with caplog.at_level(logging.WARNING):
        teach(trainer, make_batch, 3)
    assert (
        caplog.text.count("0 steps are held out, and 320 are left to learn from; change held_out, which is 1e-06") == 1
    )
    assert "Policy/Held-out Log Likelihood" not in statistics.values
    assert "Policy/Training Log Likelihood" in statistics.values


@pytest.mark.lengthy
def test_a_policy_with_memory_imitates_an_expert_that_remembers(make_trainer, make_batch, statistics):
    accuracies = {}
    for name, network in (("with", MEMORY), ("without", {})):
        trainer = make_trainer(
            ActionSpec(0, (2,)),
            network_settings={"hidden_units": 16, **network},
            hyperparameters={"learning_rate": 3e-2},
        )
        batch = make_batch([5] * 60, ActionSpec(0, (2,)))
        cue = batch.rows["obs_0"][::5, 0] > 0
        batch = batch.replace(discrete_actions=np.repeat(cue, 5)[:, None].astype(np.int32))
        for _ in range(15):
            trainer.add(batch)
            trainer.learn()
        accuracies[name] = statistics.last("Policy/Held-out Accuracy")
    assert accuracies["with"] > 0.95
    assert accuracies["without"] < 0.8


def test_with_memory_it_takes_the_action_before_from_the_trajectory_or_from_before_its_cut(make_trainer, make_batch):
    actions = ActionSpec(1, (2,))
    trainer = make_trainer(actions, network_settings=MEMORY, hyperparameters={"held_out": 0})
    trainer.add(
        make_batch(
            [2, 1],
            actions,
            continuous_actions=np.array([[1.5], [-6], [0]], np.float32),
            discrete_actions=np.array([[1], [0], [1]], np.int32),
            previous_continuous_actions=np.array([[0], [3]], np.float32),
            previous_discrete_actions=np.array([[0], [1]], np.int32),
        )
    )
    columns = trainer.state_dict()["gathered"]["columns"]
    assert columns["previous"].tolist() == [[0, 1, 0], [0.5, 0, 1], [1, 0, 1]]
    assert columns["continuous"].tolist() == [[1.5], [-3], [0]]  # -6 was -3 to the environment


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("actions", "network", "observations"),
    [
        (ActionSpec(2), {"normalize": True}, (ObservationSpec("vector", (3,)),)),
        (ActionSpec(1, (3, 2), masked=True), MEMORY, (ObservationSpec("vector", (3,)),)),
        (ActionSpec(2), MEMORY, (IMAGE, ObservationSpec("vector", (3,)))),
        (ActionSpec(1, (3, 2), masked=True), {}, (IMAGE, ObservationSpec("vector", (3,)))),
    ],
)
def test_a_resumed_trainer_continues_bit_for_bit(make_trainer, make_batch, actions, network, observations):
    def run(trainer, batches):
        for batch in batches:
            trainer.add(batch)
            while trainer.ready():
                trainer.learn()

    parts = {"observations": observations, "network_settings": network, "hyperparameters": {"held_out": 0.3}}
    batches = [make_batch([7] * 6, actions, seed=i, first=6 * i, observations=observations) for i in range(5)]
    whole, first, second = (make_trainer(actions, seed=seed, **parts) for seed in (0, 0, 0))
    run(whole, batches)
    run(first, batches[:3])  # in the middle of a buffer
    assert first.state_dict()["waiting"] > 0
    second.load_state_dict(first.state_dict())
    run(second, batches[3:])
    np.testing.assert_array_equal(flat_weights(whole), flat_weights(second))
    assert (whole.step, whole.version) == (second.step, second.version)


def test_the_state_of_another_network_is_refused_by_the_tensors_name(make_trainer):
    state = make_trainer(network_settings={"hidden_units": 4}).state_dict()
    with pytest.raises(StageError, match=r"Test: weights: expected tensor .* \(8, 3\), got \(4, 3\)"):
        make_trainer().load_state_dict(state)
    with pytest.raises(StageError, match="normalize is true, but the saved state was made with false"):
        make_trainer(network_settings={"normalize": True}).load_state_dict(make_trainer().state_dict())


def test_another_run_can_start_from_the_weights(make_trainer, make_batch):
    taught = make_trainer(network_settings={"normalize": True})
    teach(taught, make_batch, 3)
    fresh = make_trainer(seed=5, network_settings={"normalize": True})
    fresh.warm_start(taught.warm_state())
    np.testing.assert_array_equal(flat_weights(taught), flat_weights(fresh))
    assert (fresh.step, fresh.version) == (0, 0)
    other = make_trainer(seed=6, network_settings={"normalize": True})
    other.take_weights(taught.policy().tensors())
    np.testing.assert_allclose(flat_weights(taught), flat_weights(other), rtol=1e-5)


def test_a_number_that_is_not_finite_is_refused_even_if_held_out(make_trainer, make_batch):
    trainer = make_trainer(hyperparameters={"held_out": 0.5})
    batch = make_batch([2] * 10)
    aside = held_out(batch.trajectories["agent_ids"], batch.trajectories["episode_ids"], 0, 0.5)
    observed = batch.rows["obs_0"].copy()
    observed[2 * np.flatnonzero(aside)[0]] = np.nan
    before = trainer.state_dict()
    with pytest.raises(NotFiniteError, match="Test: agent 0, episode"):
        trainer.add(batch.replace(obs_0=observed))
    assert (trainer.step, len(trainer.state_dict()["gathered"]["lengths"])) == (before["step"], 0)


def test_a_call_with_only_held_out_steps_is_no_update(make_trainer, make_batch):
    trainer = make_trainer(hyperparameters={"held_out": 0.5})
    batch = make_batch([2] * 10)
    aside = held_out(batch.trajectories["agent_ids"], batch.trajectories["episode_ids"], 0, 0.5)
    for part in (batch.select(aside), batch.select(~aside)):
        trainer.add(part)
        trainer.learn()
    assert (trainer.version, trainer.policy_updates) == (2, 1)
    again = make_trainer(hyperparameters={"held_out": 0.5})
    again.load_state_dict(trainer.state_dict())
    assert (again.version, again.policy_updates) == (2, 1)
