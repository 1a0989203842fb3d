"""The format that Unity expects of a model of version 3, letter by letter: names, order, types, shapes, constants."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_samples import MEMORY, VECTOR, design_for, exported, inputs_for, run, seen_by

from headrace.queues.specs import ActionSpec, ObservationSpec

CAMERA = ObservationSpec("camera", (24, 20, 3), "uint8", channels_last=True)
THINGS = ObservationSpec("things", (5, 2))
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def described(values):
    """(name, element type, shape) of each input or output."""
    return [
        (
            value.name,
            value.type.tensor_type.elem_type,
            [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim],
        )
        for value in values
    ]


CASES = {
    "continuous": (
        design_for(actions=ActionSpec(2)),
        [("obs_0", FLOAT, ["batch", 3])],
        [
            ("version_number", FLOAT, [1]),
            ("memory_size", FLOAT, [1]),
            ("continuous_actions", FLOAT, ["batch", 2]),
            ("continuous_action_output_shape", FLOAT, [1]),
            ("deterministic_continuous_actions", FLOAT, ["batch", 2]),
        ],
        {"version_number": [3], "memory_size": [0], "continuous_action_output_shape": [2]},
    ),
    "discrete": (
        design_for(actions=ActionSpec(0, (3, 2, 4), masked=True)),
        [("obs_0", FLOAT, ["batch", 3]), ("action_masks", FLOAT, ["batch", 9])],
        [
            ("version_number", FLOAT, [1]),
            ("memory_size", FLOAT, [1]),
            ("discrete_actions", INT64, ["batch", 3]),
            ("discrete_action_output_shape", FLOAT, [1, 3]),
            ("deterministic_discrete_actions", INT64, ["batch", 3]),
        ],
        {"version_number": [3], "memory_size": [0], "discrete_action_output_shape": [[3, 2, 4]]},
    ),
    "everything": (
        design_for(VECTOR, CAMERA, THINGS, actions=ActionSpec(2, (3, 2), masked=True), memory=MEMORY),
        [
            ("obs_0", FLOAT, ["batch", 3]),
            ("obs_1", FLOAT, ["batch", 3, 24, 20]),
            ("obs_2", FLOAT, ["batch", 5, 2]),
            ("action_masks", FLOAT, ["batch", 5]),
            ("recurrent_in", FLOAT, ["batch", 1, 26]),
        ],
        [
            ("version_number", FLOAT, [1]),
            ("memory_size", FLOAT, [1]),
            ("continuous_actions", FLOAT, ["batch", 2]),
            ("continuous_action_output_shape", FLOAT, [1]),
            ("deterministic_continuous_actions", FLOAT, ["batch", 2]),
            ("discrete_actions", INT64, ["batch", 2]),
            ("discrete_action_output_shape", FLOAT, [1, 2]),
            ("deterministic_discrete_actions", INT64, ["batch", 2]),
            ("recurrent_out", FLOAT, ["batch", 1, 26]),
        ],
        # For drawn actions 6 numbers of the LSTM and 7 of the previous action, and as many for deterministic ones.
        {"version_number": [3], "memory_size": [26], "continuous_action_output_shape": [2]},
    ),
}
each_case = pytest.mark.parametrize(("design", "inputs", "outputs", "constants"), CASES.values(), ids=CASES)


@each_case
def test_inputs_and_outputs_are_those_of_the_format_in_its_order(design, inputs, outputs, constants):
    graph = onnx.load_from_string(exported(design)).graph
    assert described(graph.input) == inputs
    assert described(graph.output) == outputs


@each_case
def test_the_constants_are_outputs_of_a_run_on_zeros(design, inputs, outputs, constants):
    zeros = {name: np.zeros([1, *shape[1:]], np.float32) for name, _, shape in inputs}
    found = run(exported(design), zeros)
    for name, numbers in constants.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], numbers)


@each_case
def test_constants_are_not_bare_initializers_and_weights_are_not_inputs(design, inputs, outputs, constants):
    graph = onnx.load_from_string(exported(design)).graph
    made = {output for node in graph.node for output in node.output}
    assert {output.name for output in graph.output} <= made
    assert not {tensor.name for tensor in graph.initializer} & {given.name for given in graph.input}


@each_case
def test_outputs_have_the_promised_shapes_for_any_number_of_agents(design, inputs, outputs, constants):
    model = exported(design)
    for rows in (1, 4):
        fed = inputs_for(design, seen_by(design, rows))
        for name, _, shape in inputs:
            fed.setdefault(name, np.zeros([rows, *shape[1:]], np.float32))
        found = run(model, fed)
        for name, kind, shape in outputs:
            assert list(found[name].shape) == [rows if size == "batch" else size for size in shape]
            assert found[name].dtype == (np.float32 if kind == FLOAT else np.int64)


def test_the_operator_set_is_9_and_the_file_says_who_made_it():
    model = onnx.load_from_string(exported(design_for()))
    assert (model.ir_version, model.opset_import[0].version) == (4, 9)
    assert model.producer_name == "headrace"
    assert model.graph.name == "Test"
    assert model.doc_string == "Test, step 700"
