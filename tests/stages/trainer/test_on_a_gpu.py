"""Trainers on a GPU learn what they learn on the CPU, with graphs and without; skipped where torch finds no CUDA device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from trainer_samples import IMAGE, VECTOR, context_of, experience, flat_weights

from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.trainer.factory import make_trainer

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    # The weights are views into one vector, so cuDNN copies an LSTM's at each call.
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
]

CONTINUOUS, HYBRID = ActionSpec(2), ActionSpec(2, (3, 2), masked=True)
UPDATES = 4
"""With two minibatches each: enough for a capture, and for replays of it."""
CASES = [
    pytest.param(kind, actions, observed, network, id=f"{kind}-{name}")
    for name, actions, observed, network in (
        ("continuous", CONTINUOUS, (VECTOR,), {"normalize": True}),
        ("hybrid", HYBRID, (VECTOR,), {}),
        ("images", CONTINUOUS, (VECTOR, IMAGE), {}),
        ("memory", CONTINUOUS, (VECTOR,), {"memory": {"memory_size": 8, "sequence_length": 4}}),
    )
    for kind in ("ppo", "poca", "impala", "sac", "bc")
]


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def made(kind, actions, observed, network, device, graphs=True):
    settings = {"network_settings": network} if network else {}
    if kind == "sac":
        settings["hyperparameters"] = {"buffer_init_steps": 0, "batch_size": 16}
    context = context_of(kind, BehaviorSpec("Test", observed, actions), **settings)
    return make_trainer(replace(context, device=device, accelerated=graphs))


def learned(trainer, kind, memory_size, updates=UPDATES):
    for number in range(updates):
        batch = experience(
            trainer.context.spec, [16, 9, 7, 16], seed=number, memory_size=memory_size, squashed=kind == "sac"
        )
        trainer.add(batch)
        while trainer.ready():
            trainer.learn()
    return trainer


def networks(trainer):
    """The weights of the acting policy, and of what else a warm start takes over: critics, normaliser."""
    return np.concatenate([flat_weights(trainer), *(part.ravel() for part in arrays(trainer.warm_state()))])


def arrays(state):
    if isinstance(state, dict):
        return [array for part in state.values() for array in arrays(part)]
    return [state] if isinstance(state, np.ndarray) else []


@pytest.mark.parametrize(("kind", "actions", "observed", "network"), CASES)
def test_a_gpu_learns_what_the_cpu_learns(kind, actions, observed, network):
    size = network.get("memory", {}).get("memory_size", 0)
    on_cpu, on_gpu, eager = (
        learned(made(kind, actions, observed, network, device, graphs), kind, size)
        for device, graphs in (("cpu", True), ("cuda", True), ("cuda", False))
    )
    assert on_cpu.version == on_gpu.version == eager.version > 0
    np.testing.assert_allclose(networks(on_gpu), networks(eager), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(networks(on_gpu), networks(on_cpu), rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize(("kind", "actions", "observed", "network"), CASES)
def test_a_checkpoint_moves_between_devices(kind, actions, observed, network):
    size = network.get("memory", {}).get("memory_size", 0)
    for first, second in (("cuda", "cpu"), ("cpu", "cuda")):
        trainer = learned(made(kind, actions, observed, network, first), kind, size, updates=1)
        other = made(kind, actions, observed, network, second)
        other.load_state_dict(trainer.state_dict())
        np.testing.assert_array_equal(flat_weights(other), flat_weights(trainer))
        learned(other, kind, size, updates=1)


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_steps_are_captured_and_replayed(kind, caplog):
    caplog.set_level("INFO")
    trainer = learned(made(kind, CONTINUOUS, (VECTOR,), {}, "cuda"), kind, 0)
    assert "are captured as CUDA graphs" in caplog.text
    assert "are not captured" not in caplog.text
    assert trainer._update._captured._captures
