"""Behavioural cloning beside a trainer: what it teaches, when, how much, and that it goes on where it stopped."""

from typing import Any

import numpy as np
import pytest
import torch

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.imitation.cloning import BehavioralCloning, ClonedActor
from headrace.stages.trainer.intake import ObservationPreprocessor
from headrace.stages.trainer.protocol import TrainerContext, new_random

VECTOR = ObservationSpec("vector", (3,))


class Pupil:
    """A network of PPO's or SAC's, and cloning for it from a recording."""

    def __init__(self, kind, actions, path, normalize=False, memory=None, seed=0, rate=1e-2, **cloning):
        spec = BehaviorSpec("Test", (VECTOR,), actions)
        network = {"hidden_units": 32, "num_layers": 1, "normalize": normalize, "memory": memory}
        settings = BehaviorSettings.model_validate(
            {
                "trainer_type": kind,
                "hyperparameters": {"batch_size": 32, "buffer_size": 256, "learning_rate": 1e-2},
                "network_settings": network,
                "behavioral_cloning": {"demo_path": path.name, **cloning},
            }
        )
        self.design = design_of(spec, settings)
        self.random = new_random(seed)
        if kind == "sac":
            flat = FlatParameters(seeded(self.random, lambda: ActorNetwork(self.design)))
            self.network: Any = flat
            self.actor = ClonedActor.from_actor(self.design, flat)
        else:
            both = self.network = make_actor_critic(self.design, 1, False, self.random)
            self.actor = ClonedActor(self.design, lambda inputs: both(inputs)[0], both)
        self.intake = ObservationPreprocessor(spec, normalize)
        context = TrainerContext("Test", settings, spec, folder=path.parent)
        self.cloning = BehavioralCloning(context, self.actor, rate, 32, self.intake, self.random)

    def heads(self, vectors, **inputs):
        with torch.no_grad():
            vectors = torch.from_numpy(self.intake.normalized(vectors))
            return self.actor.forward(Inputs(vectors, **inputs)).numpy()


def rule(vectors):
    """What the expert does: two continuous actions in [-1, 1], and one of three choices."""
    return np.clip(vectors[:, :2], -1, 1), vectors.argmax(axis=1)


@pytest.fixture
def taught(record, expert):
    """Records an expert that follows the rule."""

    def make(actions, lengths=(40, 40), **columns):
        spec = BehaviorSpec("Test", (VECTOR,), actions)
        batch = expert(list(lengths), spec, **columns)
        continuous, choices = rule(batch.rows["obs_0"])
        if actions.continuous_size:
            batch = batch.replace(continuous_actions=continuous)
        if actions.discrete_branches:
            batch = batch.replace(discrete_actions=choices[:, None].astype(np.int32))
        return record([batch], spec=spec)

    return make


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_cloning_moves_the_policy_to_the_experts_actions(taught, kind):
    pupil = Pupil(kind, ActionSpec(2, (3,)), taught(ActionSpec(2, (3,)), lengths=[200, 200]), rate=3e-2)
    first = pupil.cloning.update(0)["Losses/Pretraining Loss"]
    for step in range(14):
        last = pupil.cloning.update(step)["Losses/Pretraining Loss"]
    assert last < first / 5
    fresh = np.random.default_rng(5).normal(size=(200, 3)).astype(np.float32)
    heads, (continuous, choices) = pupil.heads(fresh), rule(fresh)
    means = np.tanh(heads[:, :2]) if kind == "sac" else heads[:, :2].clip(-3, 3) / 3
    assert np.abs(means - continuous).mean() < 0.12
    assert (heads[:, -3:].argmax(axis=1) == choices).mean() > 0.9


@pytest.mark.lengthy
def test_an_expert_that_ignores_its_observations_can_not_be_cloned(record, expert):
    spec = BehaviorSpec("Test", (VECTOR,), ActionSpec(0, (3,)))
    pupil = Pupil("ppo", spec.actions, record([expert([100, 100], spec)], spec=spec))
    for step in range(10):
        pupil.cloning.update(step)
    fresh = np.random.default_rng(5).normal(size=(300, 3)).astype(np.float32)
    assert (pupil.heads(fresh).argmax(axis=1) == rule(fresh)[1]).mean() < 0.6


def test_cloning_changes_only_the_actors_weights(taught):
    pupil = Pupil("ppo", ActionSpec(2), taught(ActionSpec(2)))
    before = pupil.network.state_dict()
    pupil.cloning.update(0)
    after = pupil.network.state_dict()
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {"body.0.weight", "body.0.bias", "action.weight", "action.bias"}
    for name in ("body.0.weight", "body.0.bias"):  # of two towers, the second is the critic's
        np.testing.assert_array_equal(before[name][1], after[name][1])
    assert not pupil.network.gradients.any()


@pytest.mark.lengthy
def test_cloning_uses_the_trainers_normaliser(taught):
    pupil = Pupil("ppo", ActionSpec(2), taught(ActionSpec(2)), normalize=True, rate=3e-2)
    pupil.intake.normalizer.update(np.random.default_rng(0).normal(3, 2, (500, 3)).astype(np.float32))
    for step in range(25):
        pupil.cloning.update(step)
    fresh = np.random.default_rng(5).normal(size=(200, 3)).astype(np.float32)
    assert np.abs(pupil.heads(fresh).clip(-3, 3) / 3 - rule(fresh)[0]).mean() < 0.15


def test_cloning_fades_out_over_its_steps(taught):
    pupil = Pupil(
        "sac", ActionSpec(2), taught(ActionSpec(2)), steps=100, strength=0.5, num_epoch=1, samples_per_update=32
    )
    moved = []
    for step in (0, 50, 99, 100, 1000):
        before, snapshot = pupil.network.values.clone(), pupil.cloning.state_dict()
        reported = pupil.cloning.update(step)
        moved.append((pupil.network.values - before).abs().max().item())
        assert bool(reported) is (step < 100)
        pupil.network.values.copy_(before)
        pupil.cloning.load_state_dict(snapshot)
    # Adam's first step moves each weight by the learning rate: 0.5 × 1e-2 × what is left of the steps.
    np.testing.assert_allclose(moved, [5e-3, 2.5e-3, 5e-5, 0, 0], rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "gradient_steps"),
    [
        ({}, 3 * 3),  # 80 steps in batches of at most 32, as the trainer has, three times
        ({"num_epoch": 1, "batch_size": 10}, 8),
        ({"num_epoch": 2, "samples_per_update": 40}, 2 * 2),
        ({"num_epoch": 2, "samples_per_update": 32}, 2 * 1),
        ({"num_epoch": 2, "samples_per_update": 5}, 2 * 1),
        ({"num_epoch": 1, "batch_size": 500}, 1),
        ({"num_epoch": 1, "batch_size": 4, "memory": {"sequence_length": 8, "memory_size": 4}}, 10),
        ({"num_epoch": 1, "batch_size": 16, "memory": {"sequence_length": 8, "memory_size": 4}}, 5),
        # Two sequences of 40 steps and 24 of padding each.
        ({"num_epoch": 1, "batch_size": 64, "memory": {"sequence_length": 64, "memory_size": 4}}, 2),
    ],
)
def test_how_many_gradient_steps_an_update_has(taught, settings, gradient_steps):
    pupil = Pupil("ppo", ActionSpec(2), taught(ActionSpec(2)), **settings)
    pupil.cloning.update(0)
    assert pupil.cloning.state_dict()["steps"] == gradient_steps


def vectors_seen_by(actor):
    """The list to which each later pass of the network adds its vector observations."""
    seen, forward = [], actor.forward

    def watched(inputs):
        seen.append(inputs.vectors)
        return forward(inputs)

    object.__setattr__(actor, "forward", watched)
    return seen


def test_few_samples_are_other_ones_each_time(taught):
    pupil = Pupil("ppo", ActionSpec(2), taught(ActionSpec(2)), num_epoch=1, samples_per_update=8)
    seen = vectors_seen_by(pupil.actor)
    for step in range(100):
        pupil.cloning.update(step)
    assert all(len(each) == 8 for each in seen)
    assert len(np.unique(torch.cat(seen).numpy(), axis=0)) == 80


@pytest.mark.lengthy
def test_an_expert_with_a_memory_can_be_cloned(record, expert):
    # The expert repeats the sign that it saw two steps ago; what it sees otherwise is noise.
    spec = BehaviorSpec("Test", (VECTOR,), ActionSpec(0, (2,)))
    batch = expert([6] * 40, spec)
    first = batch.rows["obs_0"][::6, 0] > 0
    path = record([batch.replace(discrete_actions=np.repeat(first, 6)[:, None].astype(np.int32))], spec=spec)
    losses = {}
    for memory in (None, {"sequence_length": 6, "memory_size": 16}):
        pupil = Pupil("sac", spec.actions, path, memory=memory, num_epoch=4, rate=3e-2)
        for step in range(12):
            losses[memory is None] = pupil.cloning.update(step)["Losses/Pretraining Loss"]
    assert losses[False] < 0.1
    assert losses[True] > 0.3


def test_cloning_continues_bit_by_bit_from_its_state(taught):
    path = taught(ActionSpec(2, (3,)))
    one, other = (Pupil("ppo", ActionSpec(2, (3,)), path, seed=seed) for seed in (0, 1))
    one.cloning.update(0)
    other.network.load(one.network.state_dict())
    other.cloning.load_state_dict(one.cloning.state_dict())
    other.random.bit_generator.state = one.random.bit_generator.state
    assert one.cloning.update(1) == other.cloning.update(1)
    assert torch.equal(one.network.values, other.network.values)


def test_a_loss_that_is_not_finite_leaves_everything_as_it_was(taught):
    pupil = Pupil("ppo", ActionSpec(2), taught(ActionSpec(2)))
    pupil.network.parameters["action.bias"].detach().fill_(torch.inf)
    before, state = pupil.network.values.clone(), pupil.cloning.state_dict()
    with pytest.raises(
        NotFiniteError, match="Test: a loss or a weight became NaN.* A lower behavioral_cloning.strength"
    ):
        pupil.cloning.update(7)
    assert torch.equal(before, pupil.network.values)
    assert pupil.cloning.state_dict()["steps"] == state["steps"] == 0
