"""Policies of every kind with weights that matter, and what their agents see, for tests of the ONNX format."""

from __future__ import annotations

import numpy as np
import onnx

from headrace.config import NetworkSettings
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign, policy_layout
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.policy.onnx.export import OPSET
from headrace.stages.policy.onnx.model import onnx_model
from headrace.stages.policy.onnx.onnx_policy import unity_input
from headrace.stages.policy.onnx.runtime import load_onnxruntime

VECTOR = ObservationSpec("vector", (3,))
CONTINUOUS = ActionSpec(2)
MEMORY = {"memory_size": 6, "sequence_length": 4}


def design_for(*observed, actions=CONTINUOUS, squashed=False, folder=None, **settings):
    network = NetworkSettings.model_validate({"hidden_units": 16, "num_layers": 2, **settings})
    return PolicyDesign(BehaviorSpec("Test", observed or (VECTOR,), actions), network, squashed, folder)


def update_for(design, seed=0, step=700):
    """Weights as they are drawn, but for biases and σ, which training would have moved off zero."""
    random = np.random.default_rng(seed)
    actor = seeded(random, lambda: ActorNetwork(design))
    tensors = actor.acting_tensors()
    for tensor in tensors.values():
        if tensor.ndim == 1:
            tensor += random.normal(0, 0.3, tensor.shape).astype(np.float32)
    tensors["action.weight"] *= 4
    layout = policy_layout(design)
    vectors = ObservationLayout(design.spec).vector_size
    if design.settings.normalize and vectors:
        tensors["normalizer.mean"] = random.normal(1, 2, vectors).astype(np.float32)
        tensors["normalizer.inverse_std"] = random.uniform(0.2, 2, vectors).astype(np.float32)
    weights = np.concatenate([tensors[name].reshape(-1) for name, _ in layout])
    return PolicyUpdate("Test", 7, weights, layout, step)


def live_policy(design, update):
    policy = make_policy(design)
    policy.load(update)
    return policy


def seen_by(design, rows, seed=5):
    """Random observations; of things in sets, some are not there."""
    random = np.random.default_rng(seed)

    def one(spec):
        shape = (rows, *spec.shape)
        if spec.dtype != "float32":
            return random.integers(0, 256, shape).astype(spec.dtype)
        drawn = random.normal(size=shape).astype(np.float32)
        if spec.kind == "set":
            drawn[random.random(shape[:2]) < 0.4] = 0.0
        return drawn

    return tuple(one(spec) for spec in design.spec.observations)


def masks_for(design, rows, seed=8):
    """Random masks that leave each branch's last choice."""
    masks = np.random.default_rng(seed).random((rows, design.spec.actions.mask_size)) < 0.6
    masks[:, np.cumsum(design.spec.actions.discrete_branches) - 1] = True
    return masks


def inputs_for(design, observations, masks=None, memories=None):
    """What Unity would feed a model with."""
    inputs = {
        f"obs_{i}": unity_input(spec, observation)
        for i, (spec, observation) in enumerate(zip(design.spec.observations, observations, strict=True))
    }
    if masks is not None:
        inputs["action_masks"] = masks.astype(np.float32)
    if memories is not None:
        inputs["recurrent_in"] = memories
    return inputs


def session(model, seed=None):
    onnxruntime = load_onnxruntime()
    if seed is not None:
        onnxruntime.set_seed(seed)  # of the generators of sessions that are made from now on
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model, inputs, seed=None):
    """All outputs by name."""
    made = session(model, seed)
    names = [output.name for output in made.get_outputs()]
    return dict(zip(names, made.run(names, inputs), strict=True))


def exported(design, update=None, opset=OPSET):
    """The model of a design, which passes ONNX's own checker."""
    model = onnx_model(design, update or update_for(design), opset)
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    return model


def with_logits(model):
    """The same model, which also tells of each branch by which masked logits it chooses: outputs `logits_0`, …."""
    loaded = onnx.load_from_string(model)
    for index, node in enumerate([node for node in loaded.graph.node if node.op_type == "ArgMax"]):
        loaded.graph.node.append(onnx.helper.make_node("Identity", [node.input[0]], [f"logits_{index}"]))
        shape = onnx.helper.make_tensor_value_info(f"logits_{index}", onnx.TensorProto.FLOAT, None)
        loaded.graph.output.append(shape)
    return loaded.SerializeToString()
