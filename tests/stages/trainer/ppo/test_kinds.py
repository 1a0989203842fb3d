"""PPO with every kind of observation, action and network: it learns, acts, and goes on from where it was."""

import sys

import numpy as np
import pytest
from trainer_samples import all_weights, demonstrations, experience, flat_weights, trainer_of

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.numpy_policy import make_policy

VECTOR = ObservationSpec("vector", (3,))
IMAGE = ObservationSpec("image", (20, 20, 3), "uint8", channels_last=True)
FLOATS = ObservationSpec("floats", (1, 20, 20))
BYTES = ObservationSpec("bytes", (3, 4, 5), "uint8")
SET = ObservationSpec("set", (4, 5))
GOAL = ObservationSpec("goal", (2,), goal=True)
HYBRID = ActionSpec(2, (3, 2), masked=True)
MEMORY = {"memory": {"memory_size": 4, "sequence_length": 4}}

KINDS = {
    "images only": ((IMAGE,), ActionSpec(0, (2,)), {}),
    "several of each": ((IMAGE, VECTOR, FLOATS, VECTOR), HYBRID, {"normalize": True}),
    "sets": ((SET, VECTOR), ActionSpec(2), {}),
    "goal": ((VECTOR, GOAL), ActionSpec(1, (2,)), {"normalize": True}),
    "goal as an input": ((VECTOR, GOAL), ActionSpec(1), {"goal_conditioning_type": "none"}),
    "custom network": ((VECTOR, VECTOR), HYBRID, {"network": "nets_of_mine:Sum"}),
    "custom network of images": ((BYTES,), HYBRID, {"network": "nets_of_mine:Flat"}),
    "memory of everything": ((IMAGE, SET, VECTOR, GOAL), HYBRID, {**MEMORY, "normalize": True}),
    "custom network with memory": ((VECTOR,), ActionSpec(1), {"network": "nets_of_mine:Sum", **MEMORY}),
}

CUSTOM = """
import torch
from torch import nn


class Sum(nn.Module):
    def __init__(self, spec, settings):
        super().__init__()
        self.encoding_size = settings.hidden_units
        self.layer = nn.Linear(3, settings.hidden_units)

    def forward(self, observations):
        return torch.relu(self.layer(sum(observation.float() for observation in observations)))


class Flat(Sum):
    def __init__(self, spec, settings):
        super().__init__(spec, settings)
        self.layer = nn.Linear(60, settings.hidden_units)

    def forward(self, observations):
        return torch.relu(self.layer(observations[0].view(-1, 60)))  # a view of what lies in memory as it came
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nets_of_mine.py").write_text(CUSTOM)
    yield tmp_path
    sys.modules.pop("nets_of_mine", None)


@pytest.fixture(params=list(KINDS))
def make(request, folder):
    observations, actions, network = KINDS[request.param]
    spec = BehaviorSpec("Test", observations, actions)

    def make(seed=0, **more):
        return trainer_of("ppo", spec, seed, folder=folder, network_settings=network, **more)

    return make


def fed(trainer, seeds):
    memory = trainer.context.settings.network_settings.memory
    for seed in seeds:
        size = 0 if memory is None else memory.memory_size
        trainer.add(experience(trainer.context.spec, [11, 7, 5], seed, size))
        if trainer.ready():
            trainer.learn()
    return trainer


def test_each_kind_of_policy_learns_and_acts(make, folder, request):
    """With a separate critic or one that shares the actor's body, alternating over the kinds."""
    kind = [*KINDS].index(request.node.callspec.params["make"])
    trainer = make(hyperparameters={"shared_critic": kind % 2 == 0})
    before = flat_weights(trainer)
    fed(trainer, range(2))
    assert trainer.version == 1
    assert np.isfinite(flat_weights(trainer)).all()
    assert not np.array_equal(before, flat_weights(trainer))
    spec = trainer.context.spec
    policy = make_policy(design_of(spec, trainer.context.settings, folder))
    policy.load(trainer.policy())
    observations = [experience(spec, [6]).rows[f"obs_{i}"] for i in range(len(spec.observations))]
    decision = policy.act(tuple(observations), None, np.random.default_rng(0))
    assert np.isfinite(decision.columns["log_probs"]).all()


SOME = pytest.mark.parametrize(
    "make", ["several of each", "memory of everything", "custom network with memory"], indirect=True
)
"""The kinds whose states have parts that no other kind has."""


@pytest.mark.lengthy
@SOME
def test_training_continues_from_its_state_bit_by_bit(make):
    original = fed(make(1), range(3))
    resumed = make(2)
    resumed.load_state_dict(original.state_dict())
    np.testing.assert_array_equal(flat_weights(fed(original, range(3, 5))), flat_weights(fed(resumed, range(3, 5))))


@SOME
def test_another_run_may_start_from_its_policy_or_from_all_that_it_learned(make):
    trained, from_policy, from_all = fed(make(1), range(4)), make(2), make(3)
    from_policy.take_weights(trained.policy().tensors())
    np.testing.assert_allclose(flat_weights(from_policy), flat_weights(trained), rtol=1e-6)
    from_all.warm_start(trained.warm_state())
    np.testing.assert_array_equal(flat_weights(from_all), flat_weights(trained))
    np.testing.assert_array_equal(all_weights(from_all), all_weights(trained))
    assert (from_all.step, from_all.version) == (0, 0)


def test_weights_of_another_network_are_refused_by_name():
    spec = BehaviorSpec("Test", (VECTOR,), ActionSpec(1))
    small, large = trainer_of("ppo", spec), trainer_of("ppo", spec, network_settings={"hidden_units": 9})
    before = flat_weights(small)
    for start in (
        lambda: small.take_weights(large.policy().tensors()),
        lambda: small.warm_start(large.warm_state()),
    ):
        with pytest.raises(StageError, match=r"Test: .*body\.0\.weight"):
            start()
    np.testing.assert_array_equal(flat_weights(small), before)


@pytest.mark.lengthy
@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["feed-forward", "memory"])
def test_signals_and_cloning_resume_from_their_state_bit_for_bit(tmp_path, memory):
    spec = BehaviorSpec("Test", (VECTOR,), HYBRID)
    demo = {"demo_path": str(demonstrations(tmp_path / "expert.stream", spec))}
    settings = {
        "reward_signals": {"extrinsic": {}, "curiosity": {}, "rnd": {}, "gail": demo},
        "behavioral_cloning": {**demo, "steps": 1000},
        "network_settings": memory,
    }
    original = fed(trainer_of("ppo", spec, 1, **settings), range(3))
    resumed = trainer_of("ppo", spec, 2, **settings)
    resumed.load_state_dict(original.state_dict())
    np.testing.assert_array_equal(flat_weights(fed(original, range(3, 7))), flat_weights(fed(resumed, range(3, 7))))
    assert original.version == 5
