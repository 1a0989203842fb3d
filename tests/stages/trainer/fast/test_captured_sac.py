from typing import Any

import numpy as np
import pytest
import torch
from recorded_graphs import RecordedGraphs
from tensors import assert_close
from trainer_samples import IMAGE, VECTOR, experience

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.fast.cuda_graphs import WARM_UP
from headrace.stages.trainer.fast.sac import CapturedSACUpdate
from headrace.stages.trainer.protocol import TrainerContext

CONTINUOUS, MASKED = ActionSpec(2), ActionSpec(0, (3, 2), masked=True)


def made(graphs=None, actions=CONTINUOUS, observed=(VECTOR,), **hyper) -> Any:
    """A trainer of the same networks as any other, by autograd; with graphs a captured one."""
    hyperparameters = {"batch_size": 16, "buffer_size": 256, "learning_rate": 1e-2, "steps_per_update": 4, **hyper}
    settings = {
        "trainer_type": "sac",
        "max_steps": 500,
        "hyperparameters": {"learning_rate_schedule": "linear", **hyperparameters},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
    }
    spec = BehaviorSpec("Test", observed, actions)
    trainer: Any = make_trainer(
        TrainerContext("Test", BehaviorSettings.model_validate(settings), spec, accelerated=False)
    )
    if graphs is not None:
        trainer._update = CapturedSACUpdate(trainer._update, graphs, pytest.fail)
    return trainer


def learn(trainer, rounds, first=0):
    for seed in range(first, first + rounds):
        trainer.add(experience(trainer.context.spec, [10, 10, 10], seed, squashed=True))
        trainer.learn()


def assert_same(one, other):
    weights, others = one._update.weights(), other._update.weights()
    for network, tensors in weights.items():
        for name, tensor in tensors.items():
            np.testing.assert_allclose(tensor, others[network][name], rtol=1e-4, atol=1e-6, err_msg=f"{network} {name}")
    for name, adam in one._update._adams.items():
        assert adam.steps == other._update._adams[name].steps, name


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "given",
    [{}, {"actions": MASKED, "entropy_coefficient": "fixed"}, {"observed": (VECTOR, IMAGE)}],
    ids=["continuous", "masked choices and a fixed entropy coefficient", "images"],
)
def test_replayed_steps_learn_what_steps_without_graphs_do_as_the_learning_rate_falls(given):
    graphs = RecordedGraphs()
    eager, captured = (made(each, **given) for each in (None, graphs))
    learn(eager, 4)
    learn(captured, 4)
    steps = captured._update._adams["actor"].steps
    assert steps > 20
    assert (graphs.warm_ups, graphs.captures, graphs.replays) == (WARM_UP, 1, steps - WARM_UP)
    assert_same(captured, eager)


@pytest.mark.lengthy
def test_captured_and_eager_updates_resume_from_each_other_s_states():
    eager, captured, other = (made(each) for each in (None, RecordedGraphs(), RecordedGraphs()))
    learn(eager, 3)
    learn(captured, 5)
    learn(other, 3)
    captured._update.load_state_dict(eager._update.state_dict())
    assert_same(captured, eager)
    eager._update.load_state_dict(other._update.state_dict())
    for trainer in (eager, captured):
        drawn = np.random.default_rng(3)
        memory = other._memory
        replayed = memory.sample(16, drawn)
        transitions = trainer._maker.transitions(replayed)
        batch = trainer._maker.minibatch(replayed, transitions)
        noise = torch.from_numpy(drawn.standard_normal((32, 2), np.float32))
        for _ in range(5):
            trainer._update.step(batch, transitions.rewards[:, None], torch.full((16, 1), 0.9), noise, 1e-3)
    assert_same(captured, eager)


@pytest.mark.lengthy
def test_measures_of_several_steps_are_kept_apart():
    """A graph writes its results where those of the step before were."""
    eager, captured = (made(each) for each in (None, RecordedGraphs()))
    found = []
    for trainer in (eager, captured):
        learn(trainer, 3)
        replayed = [trainer._memory.sample(16, np.random.default_rng(seed)) for seed in range(3)]
        noise = torch.zeros(32, 2)
        measures = []
        for each in replayed:
            transitions = trainer._maker.transitions(each)
            batch = trainer._maker.minibatch(each, transitions)
            rewards = transitions.rewards[:, None]
            measures.append(trainer._update.step(batch, rewards, torch.full((16, 1), 0.9), noise, 1e-3))
        found.append(measures)
    for one, other in zip(*found, strict=True):
        for name in ("losses", "q1", "q2", "targets", "values", "negentropies"):
            assert_close(getattr(one, name), getattr(other, name), rtol=1e-4, atol=1e-5)
