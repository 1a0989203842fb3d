"""Gradient steps on the device `meta`, which has shapes and no numbers: what a GPU would have to wait or fetch for fails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trainer_samples import IMAGE, VECTOR, experience

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.fast.cuda_graphs import CudaGraphs
from headrace.stages.trainer.fast.ppo import CapturedPPOUpdate
from headrace.stages.trainer.fast.sac import CapturedSACUpdate
from headrace.stages.trainer.on_policy.rollout import Rollout
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.protocol import TrainerContext

CONTINUOUS, HYBRID = ActionSpec(2), ActionSpec(2, (3, 2), masked=True)


class OnDevice(TorchDispatchMode):
    """Fails where an operator takes in or gives a tensor that is not there; numbers [] of the host may go in."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        inside = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        there = [tensor for tensor in inside if tensor.is_meta]
        assert all(tensor.is_meta or not tensor.dim() for tensor in inside), f"{func} takes in a tensor of the host"
        if func._schema.name == "aten::_fused_adam_":  # `meta` lacks it
            assert len(inside) == len(there)
            return None
        out = func(*args, **(kwargs or {}))
        gave = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        assert all(tensor.is_meta for tensor in gave) or not there, f"{func} brings a tensor to the host"
        return out


class OneStep(CudaGraphs):
    """Graphs on `meta`: the first step runs on the device alone, and nothing else does."""

    def __init__(self):
        """Without a stream, which only a GPU has."""

    def beside(self, function):
        mode = OnDevice()
        with mode:
            found = function()
        raise StepMadeError(found, mode.calls)

    def capture(self, function):
        raise AssertionError("the first step is not captured")


class StepMadeError(Exception):
    pass


def made(kind, actions, observed, **hyperparameters):
    block = {"trainer_type": kind, "hyperparameters": {"batch_size": 8, "buffer_size": 32, **hyperparameters}}
    settings = BehaviorSettings.model_validate(block)
    return make_trainer(TrainerContext("Test", settings, BehaviorSpec("Test", observed, actions), device="meta"))


@pytest.mark.parametrize(
    ("actions", "observed", "hyper"),
    [
        (CONTINUOUS, (VECTOR,), {"max_grad_norm": 0.5}),
        (HYBRID, (VECTOR, IMAGE), {"max_grad_norm": 0.5}),
        (CONTINUOUS, (VECTOR, IMAGE), {"ratio_per_dimension": True, "shared_critic": True}),
        (HYBRID, (VECTOR,), {"ratio_per_dimension": True, "shared_critic": True}),
    ],
)
def test_a_step_of_ppo_stays_on_its_device(actions, observed, hyper):
    update = CapturedPPOUpdate(made("ppo", actions, observed, **hyper)._update, OneStep(), pytest.fail)
    random = np.random.default_rng(0)
    pictures = (random.integers(0, 256, (32, *IMAGE.shape)).astype(np.uint8),) if len(observed) > 1 else ()
    columns = actions.log_prob_size if hyper.get("ratio_per_dimension") else 1
    widths = {"continuous": actions.continuous_size, "penalties": actions.mask_size, "old_log_probs": columns}
    widths |= {"advantages": 1, "returns": 1}
    targets = {name: random.normal(size=(32, width)).astype(np.float32) for name, width in widths.items()}
    choices = np.zeros((32, len(actions.discrete_branches)), np.int64)
    vectors = torch.from_numpy(random.normal(size=(32, 3)).astype(np.float32)).to("meta")
    rows = Inputs(vectors, tuple(map(torch.from_numpy, pictures)))
    with pytest.raises(StepMadeError) as made_step:
        update.run(Rollout(rows, targets, choices), Coefficients(1e-3, 0.1, 0.2), random, 0)
    found, calls = made_step.value.args
    assert (found.losses.shape, found.log_ratios.shape) == ((3,), (8, columns))
    assert calls > 30


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("actions", "observed"), [(CONTINUOUS, (VECTOR,)), (CONTINUOUS, (VECTOR, IMAGE)), (HYBRID, (VECTOR,))]
)
def test_a_step_of_sac_stays_on_its_device(actions, observed):
    trainer = made("sac", actions, observed)
    update = CapturedSACUpdate(trainer._update, OneStep(), pytest.fail)
    trainer._memory.add(*stored(trainer))
    replayed = trainer._memory.sample(8, np.random.default_rng(0))
    transitions = trainer._maker.transitions(replayed)
    batch = trainer._maker.minibatch(replayed, transitions)
    noise = torch.zeros(8 * trainer._update.draws, actions.continuous_size, device="meta")
    ones = torch.ones(8, 1, device="meta")
    with pytest.raises(StepMadeError) as made_step:
        update.step(batch, ones, ones, noise, 1e-3)
    found, calls = made_step.value.args
    assert (found.losses.shape, found.q1.shape) == ((4,), (8, 1))
    assert calls > 50


def stored(trainer):
    batch = experience(trainer.context.spec, [20], squashed=True)
    return batch, *trainer._intake.encode(batch, 0)
