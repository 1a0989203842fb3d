import numpy as np
import pytest
import torch
from opened_trainers import opened_trainer_of
from tensors import assert_close
from trainer_samples import IMAGE, VECTOR, Reported, demonstrations, experience, flat_weights, trainer_of

from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.numpy_policy import make_policy

pytestmark = pytest.mark.lengthy

CONTINUOUS, DISCRETE, HYBRID = ActionSpec(2), ActionSpec(0, (3, 2)), ActionSpec(2, (3, 2), masked=True)
KINDS = pytest.mark.parametrize("actions", [CONTINUOUS, DISCRETE, HYBRID], ids=["continuous", "discrete", "hybrid"])
MEMORY = {"memory_size": 4, "sequence_length": 4}


def spec_of(actions=CONTINUOUS, *observations):
    return BehaviorSpec("Test", observations or (VECTOR,), actions)


def make_trainer(actions=CONTINUOUS, *, seed=0, statistics=None, observations=(), folder=None, **settings):
    hyperparameters = {"batch_size": 8, "steps_per_update": 4, **settings.pop("hyperparameters", {})}
    spec = spec_of(actions, *observations)
    return opened_trainer_of("sac", spec, seed, statistics, folder, hyperparameters=hyperparameters, **settings)


def make_batch(trainer, lengths, seed=0):
    design = design_of(trainer.context.spec, trainer.context.settings)
    return experience(trainer.context.spec, lengths, seed, design.memory_size, squashed=True)


def feed(trainer, batches):
    for batch in batches:
        trainer.add(batch)
        if trainer.ready():
            trainer.learn()
    return flat_weights(trainer)


def updates(trainer):
    return trainer.state_dict()["update"]["optimizers"]["actor"]["steps"]


def test_a_trainer_is_ready_after_a_batch_of_steps_and_uses_all_of_them():
    trainer = make_trainer()
    assert trainer.rows_per_update == 8
    trainer.add(make_batch(trainer, [5]))
    assert not trainer.ready()
    trainer.add(make_batch(trainer, [6, 2]))
    assert trainer.ready()
    assert trainer.learn() == 13
    assert (trainer.step, trainer.version, trainer.ready()) == (13, 1, False)


@pytest.mark.parametrize("lengths", [[[1]] * 120, [[60], [60]]])
def test_the_number_of_updates_does_not_depend_on_the_sizes_of_batches(lengths):
    trainer = make_trainer(hyperparameters={"steps_per_update": 3, "buffer_init_steps": 30})
    for seed, each in enumerate(lengths):
        trainer.add(make_batch(trainer, each, seed))
        while trainer.ready():
            trainer.learn()
    assert (trainer.step, updates(trainer)) == (120, 30)


def test_nothing_is_learned_before_the_first_batch_is_there():
    trainer = make_trainer(hyperparameters={"batch_size": 16})
    trainer.add(make_batch(trainer, [15]))
    before = flat_weights(trainer)
    assert trainer.learn() == 15
    np.testing.assert_array_equal(flat_weights(trainer), before)
    trainer.add(make_batch(trainer, [1]))
    trainer.learn()
    assert updates(trainer) == 4


def test_calls_without_a_gradient_step_are_no_updates():
    trainer = make_trainer(hyperparameters={"buffer_init_steps": 20})
    counts = []
    for seed in range(5):
        feed(trainer, [make_batch(trainer, [8], seed)])
        counts.append((trainer.version, trainer.policy_updates))
    assert counts == [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3)]
    again = make_trainer(hyperparameters={"buffer_init_steps": 20})
    again.load_state_dict(trainer.state_dict())
    assert (again.version, again.policy_updates) == (5, 3)
    again.learn()
    assert (again.version, again.policy_updates) == (6, 3)


def test_reward_signals_learn_at_their_own_ratio():
    reported = Reported()
    trainer = make_trainer(
        statistics=reported,
        reward_signals={"extrinsic": {}, "rnd": {}},
        hyperparameters={"reward_signal_steps_per_update": 10},
    )
    feed(trainer, [make_batch(trainer, [20], seed) for seed in range(3)])
    assert updates(trainer) == 15
    assert len(reported.values["Losses/RND Loss"]) == 6


@pytest.mark.parametrize(
    ("actions", "memory"),
    [(CONTINUOUS, MEMORY), (DISCRETE, MEMORY), (HYBRID, None)],
    ids=["continuous", "discrete", "hybrid"],
)
def test_learning_changes_the_policy_and_actors_can_act_by_it(actions, memory):
    trainer = make_trainer(actions, network_settings={"normalize": True, "memory": memory})
    before = flat_weights(trainer)
    trainer.add(make_batch(trainer, [12, 12]))
    trainer.learn()
    update = trainer.policy()
    assert (update.version, update.step, update.behavior_id) == (1, 24, "Test")
    assert not np.array_equal(update.weights, before)
    policy = make_policy(design_of(trainer.context.spec, trainer.context.settings))
    policy.load(update)
    decision = policy.act((np.zeros((4, 3), np.float32),), None, np.random.default_rng(0))
    assert np.isfinite(decision.columns["log_probs"]).all()


def test_actors_act_by_the_heads_that_were_trained():
    trainer = make_trainer(network_settings={"activation": "relu", "num_layers": 2})
    trainer.add(make_batch(trainer, [24]))
    trainer.learn()
    policy = make_policy(design_of(trainer.context.spec, trainer.context.settings))
    policy.load(trainer.policy())
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    decision = policy.act((observations,), None, np.random.default_rng(0), deterministic=True)
    module = trainer.update.actor.module
    with torch.no_grad():
        hidden = module.body.layers(torch.from_numpy(observations))
        expected = torch.tanh(module.action(hidden)[:, :2])
    np.testing.assert_allclose(decision.actions.continuous, expected, rtol=1e-4, atol=1e-5)


def test_a_policy_once_published_does_not_change():
    trainer = make_trainer()
    update = trainer.policy()
    kept = update.weights.copy()
    trainer.add(make_batch(trainer, [24]))
    trainer.learn()
    np.testing.assert_array_equal(update.weights, kept)


def test_adding_a_batch_copies_its_arrays_and_leaves_them_unchanged():
    first, second = (make_trainer(HYBRID, network_settings={"memory": MEMORY, "normalize": True}) for _ in range(2))
    batch = make_batch(first, [12, 12])
    first.add(batch.copy())
    columns = [*batch.rows.values(), *batch.trajectories.values()]
    for column in columns:
        column.flags.writeable = False
    second.add(batch)
    for column in columns:
        column.flags.writeable = True
        column[...] = 0
    first.learn()
    second.learn()
    np.testing.assert_array_equal(flat_weights(first), flat_weights(second))


def test_an_update_that_failed_leaves_the_weights_as_they_were():
    trainer = make_trainer()
    before = trainer.state_dict()["update"]
    batch = make_batch(trainer, [24])
    batch.rows["rewards"][...] = 1e30
    trainer.add(batch)
    with pytest.raises(NotFiniteError, match="Test: update at step 24: the Q1 Loss of minibatch 1 of 6 is inf"):
        trainer.learn()
    _assert_same(trainer.state_dict()["update"], before)


def test_the_same_batches_give_the_same_weights_and_another_seed_others():
    trainers = [make_trainer(HYBRID, seed=seed) for seed in (1, 1, 2)]
    batches = [make_batch(trainers[0], [10, 9], seed) for seed in range(3)]
    first, second, other = (feed(trainer, batches) for trainer in trainers)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("actions", "memory"),
    [(CONTINUOUS, None), (DISCRETE, MEMORY), (HYBRID, MEMORY)],
    ids=["continuous", "discrete", "hybrid"],
)
def test_a_run_resumed_with_its_replay_buffer_ends_with_the_same_weights(actions, memory, tmp_path):
    spec = spec_of(actions, VECTOR, IMAGE)
    demo = demonstrations(tmp_path / "expert.stream", spec)

    def make(seed):
        return make_trainer(
            actions,
            seed=seed,
            observations=(VECTOR, IMAGE),
            network_settings={"normalize": True, "memory": memory},
            reward_signals={"extrinsic": {}, "curiosity": {"network_settings": {"hidden_units": 8}}},
            behavioral_cloning={"demo_path": str(demo), "batch_size": 8, "samples_per_update": 8, "num_epoch": 1},
            hyperparameters={"save_replay_buffer": True, "buffer_size": 40, "steps_per_update": 8},
        )

    original, resumed = make(1), make(99)
    batches = [make_batch(original, [5, 6], seed) for seed in range(6)]
    feed(original, batches[:4])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    original.save_bulk(folder)
    resumed.load_state_dict(original.state_dict())
    assert resumed.load_bulk(folder) is None
    assert (resumed.step, resumed.version) == (original.step, original.version)
    np.testing.assert_array_equal(feed(original, batches[4:]), feed(resumed, batches[4:]))
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


def test_a_run_resumed_without_a_replay_buffer_collects_first(tmp_path):
    trainer = make_trainer(hyperparameters={"buffer_init_steps": 16})
    feed(trainer, [make_batch(trainer, [24], seed) for seed in range(3)])
    trainer.save_bulk(tmp_path)
    assert not list(tmp_path.iterdir())
    resumed = make_trainer(hyperparameters={"buffer_init_steps": 16})
    resumed.load_state_dict(trainer.state_dict())
    assert resumed.load_bulk(tmp_path) is None
    before = updates(resumed)
    feed(resumed, [make_batch(resumed, [16])])
    assert updates(resumed) == before
    feed(resumed, [make_batch(resumed, [8])])
    assert updates(resumed) == before + 2


def test_a_broken_replay_buffer_is_reported_and_the_memory_starts_empty(tmp_path):
    trainer = make_trainer(hyperparameters={"save_replay_buffer": True})
    feed(trainer, [make_batch(trainer, [24])])
    trainer.save_bulk(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    resumed = make_trainer(hyperparameters={"save_replay_buffer": True})
    resumed.load_state_dict(trainer.state_dict())
    warning = resumed.load_bulk(tmp_path)
    assert "the replay buffer could not be restored, so it starts empty" in warning
    assert "truncated" in warning
    assert len(resumed.memory) == 0
    assert resumed.step == 24


def test_behaviours_of_one_checkpoint_have_separate_replay_files(tmp_path):
    for name in ("A/B", "A B"):
        spec = BehaviorSpec(name, (VECTOR,), CONTINUOUS)
        trainer_of("sac", spec, hyperparameters={"save_replay_buffer": True}).save_bulk(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_trainer_starts_from_an_exported_policy():
    trained, fresh = make_trainer(seed=1), make_trainer(seed=2)
    feed(trained, [make_batch(trained, [24])])
    fresh.take_weights(trained.policy().tensors())
    np.testing.assert_array_equal(flat_weights(fresh), flat_weights(trained))
    assert fresh.step == fresh.version == 0


def test_a_trainer_starts_from_another_run_with_a_fresh_optimizer():
    network = {"normalize": True}
    trained, fresh = (make_trainer(seed=seed, network_settings=network) for seed in (1, 2))
    feed(trained, [make_batch(trained, [24])])
    fresh.warm_start(trained.warm_state())
    _assert_same(fresh.warm_state(), trained.warm_state())
    np.testing.assert_array_equal(flat_weights(fresh), flat_weights(trained))
    assert fresh.step == updates(fresh) == 0
    with pytest.raises(StageError, match="normalize is false, but the saved state was made with true"):
        make_trainer().warm_start(trained.warm_state())


def test_a_state_of_another_network_is_refused_by_tensor():
    with pytest.raises(StageError, match=r"Test: .*expected tensor body.layers.0.weight \(8, 3\), got \(16, 3\)"):
        make_trainer().load_state_dict(make_trainer(network_settings={"hidden_units": 16}).state_dict())


def test_a_state_with_other_reward_signals_is_refused():
    other = make_trainer(reward_signals={"extrinsic": {}, "rnd": {}})
    with pytest.raises(
        StageError, match="reward_signals are extrinsic, but the saved state was made with extrinsic, rnd"
    ):
        make_trainer().load_state_dict(other.state_dict())


def test_a_behaviour_without_actions_is_refused():
    with pytest.raises(StageError, match="neither continuous nor discrete actions"):
        make_trainer(ActionSpec())


@pytest.mark.parametrize(("unbounded", "named"), [((1,), "action 1 has"), ((0, 2), "actions 0, 2 have")])
def test_continuous_actions_without_bounds_are_refused_by_number(unbounded, named):
    with pytest.raises(StageError, match=rf"Test: .*{named} no finite bounds.*environment\.wrappers.*ppo"):
        make_trainer(ActionSpec(3, (2,), unbounded=unbounded))


def test_an_empty_batch_changes_nothing():
    trainer = make_trainer()
    trainer.add(make_batch(trainer, [4, 5]).select(np.array([False, False])))
    assert trainer.step == 0


def test_updates_wait_for_the_end_of_an_episode_if_they_are_made_there():
    trainer = make_trainer(hyperparameters={"update_at": "episode_end"})
    going_on = make_batch(trainer, [16])
    going_on.trajectories["terminated"][:] = going_on.trajectories["truncated"][:] = False
    trainer.add(going_on)
    assert trainer.learn() == 16
    assert updates(trainer) == 0
    over = make_batch(trainer, [8], seed=1)
    over.trajectories["terminated"][:], over.trajectories["truncated"][:] = False, True
    trainer.add(over)
    trainer.learn()
    assert updates(trainer) == 6  # of all 24 steps
    trainer.add(going_on)
    trainer.learn()
    assert updates(trainer) == 6
    again = make_trainer(hyperparameters={"update_at": "episode_end"})
    again.load_state_dict(trainer.state_dict())
    for each in (trainer, again):
        each.add(over)
    trainer.learn()
    assert updates(trainer) == 12
    assert again.state_dict()["due_step"] == 48


def test_updates_of_a_round_are_made_after_the_round():
    trainer = make_trainer(hyperparameters={"train_freq": 12, "gradient_steps": 5, "buffer_init_steps": 12})
    assert trainer.rows_per_update == 12
    for seed, expected in enumerate([0, 0, 0, 5, 5, 10]):
        trainer.add(make_batch(trainer, [6], seed))
        if trainer.ready():
            trainer.learn()
        assert updates(trainer) == expected
    assert trainer.version == 3


def test_replayed_rewards_are_scaled_by_the_current_deviation():
    trainer = make_trainer(reward_signals={"extrinsic": {"gamma": 0.5}}, hyperparameters={"reward_normalization": True})
    seen = []
    step = trainer.update.step

    def recorded(batch, rewards, *rest):
        seen.append(rewards.numpy())
        return step(batch, rewards, *rest)

    trainer.update.step = recorded
    whole = []
    for seed in range(2):
        batch = make_batch(trainer, [8], seed)
        rewards = np.full(8, 2.0 * 100.0**seed, np.float32)
        trainer.add(batch.replace(rewards=rewards))
        trainer.learn()
        for _ in range(8):  # R of the only agent; the first episode terminated
            whole.append(rewards[0] + (0.5 * whole[-1] if len(whole) % 8 else 0.0))
        deviation = np.sqrt(np.var(whole) + 1e-8)
        expected = np.clip(np.array([2.0, 200.0][: seed + 1]) / deviation, -10, 10)
        for row in seen[2 * seed :]:
            assert np.abs(row - expected).min(axis=1).max() < 1e-2
    kept = trainer.memory.sample(64, np.random.default_rng(0)).columns["rewards"]
    assert set(kept.tolist()) == {2.0, 200.0}
    again = make_trainer(reward_signals={"extrinsic": {"gamma": 0.5}}, hyperparameters={"reward_normalization": True})
    again.load_state_dict(trainer.state_dict())
    _assert_same(again.state_dict()["signals"]["scale"], trainer.state_dict()["signals"]["scale"])


def test_a_target_entropy_is_of_continuous_actions():
    with pytest.raises(StageError, match="Test: hyperparameters.target_entropy: -2 applies to continuous actions"):
        make_trainer(DISCRETE, hyperparameters={"target_entropy": -2})


def test_targets_follow_at_each_target_update_interval():
    trainer = make_trainer(hyperparameters={"target_update_interval": 3, "tau": 1.0, "steps_per_update": 1})
    begun = trainer.update.target.values.clone()
    critics = []
    step = trainer.update.step

    def recorded(*arguments):
        found = step(*arguments)
        critics.append((trainer.update.critics.values.clone(), trainer.update.target.values.clone()))
        return found

    trainer.update.step = recorded
    trainer.add(make_batch(trainer, [8]))
    trainer.learn()
    targets = [begun, begun, critics[2][0], critics[2][0], critics[2][0], critics[5][0], critics[5][0], critics[5][0]]
    for (_, found), expected in zip(critics, targets, strict=True):
        assert_close(found, expected[-len(found) :])


def test_extremes_and_means_are_those_of_all_minibatches_since_the_last_report():
    statistics = Reported()
    settings = {"batch_size": 8, "steps_per_update": 0.5, "learning_rate": 1e-30}  # the weights stay
    trainer = make_trainer(statistics=statistics, hyperparameters=settings)
    batch = make_batch(trainer, [24])
    trainer.add(batch)
    trainer.learn()  # 48 minibatches, in which each row comes
    weights = trainer.state_dict()["update"]["weights"]["critics"]
    x = np.concatenate((batch.rows["obs_0"], batch.rows["continuous_actions"]), axis=1)
    x = x @ weights["q1.body.layers.0.weight"].T + weights["q1.body.layers.0.bias"]
    q1 = (x / (1 + np.exp(-x))) @ weights["q1.head.weight"].T + weights["q1.head.bias"]
    assert statistics.last("Policy/Q1 Min") == pytest.approx(q1.min(), rel=1e-5)
    assert statistics.last("Policy/Q1 Max") == pytest.approx(q1.max(), rel=1e-5)
    assert statistics.last("Policy/Q1 Mean") == pytest.approx(q1.mean(), abs=6 * float(q1.std()) / 384**0.5)


def test_a_warning_tells_once_if_no_episode_ends(caplog):
    trainer = make_trainer(hyperparameters={"update_at": "episode_end", "buffer_size": 64}, max_steps=10**6)
    for number in range(20):
        batch = make_batch(trainer, [8], number)
        batch.trajectories["terminated"][:] = batch.trajectories["truncated"][:] = number == 17
        trainer.add(batch)
        if trainer.ready():
            trainer.learn()
        assert len(caplog.records) == (number >= 7)
    (told,) = caplog.messages
    assert "no episode has ended in 64 steps" in told
    assert "environment.max_episode_steps" in told
    assert updates(trainer) > 0
