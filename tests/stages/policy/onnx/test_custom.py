"""Networks of a user's own: what torch can write is part of the model, what it can't is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_samples import MEMORY, VECTOR, design_for, exported, inputs_for, live_policy, run, seen_by, update_for

from headrace.queues.specs import ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx.model import LATER_OPSET, onnx_model
from headrace.stages.policy.sampling import environment_actions

HERE = Path(__file__).parent
EXAMPLES = Path(__file__).parents[4] / "examples"
EXAMPLE = EXAMPLES / "custom_network"
CAMERA = ObservationSpec("camera", (7, 9, 3), "uint8", channels_last=True)
EVERYTHING = (
    VECTOR,
    CAMERA,
    ObservationSpec("things", (4, 2)),
    ObservationSpec("height", ()),
    ObservationSpec("bytes", (3,), "uint8"),
)
DESIGNS = {
    "the example's": design_for(network="my_network:ResidualNetwork", folder=EXAMPLE),
    "of everything": design_for(*EVERYTHING, network="odd_networks:Mixed", folder=HERE, normalize=True),
    "squashed": design_for(*EVERYTHING, network="odd_networks:Mixed", folder=HERE, squashed=True),
}


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_a_custom_network_is_exported_as_part_of_the_model(design, rows):
    update, seen = update_for(design), seen_by(design, rows)
    found = run(exported(design, update), inputs_for(design, seen))["deterministic_continuous_actions"]
    means = live_policy(design, update).heads(seen)[0][:, :2]
    expected = environment_actions(design.spec.actions, np.tanh(means) if design.squashed else means, design.squashed)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(found) > 0.01


@pytest.mark.lengthy
@pytest.mark.parametrize("rows", [1, 5])
def test_a_custom_network_with_lookups_is_exported_as_part_of_the_model(rows):
    board = ObservationSpec("board", (84,), "int8")
    design = design_for(board, network="board_network:BoardNetwork", folder=EXAMPLES / "connect_four")
    update, seen = update_for(design), (np.eye(84, dtype=np.int8)[:rows],)
    found = run(exported(design, update), inputs_for(design, seen))["deterministic_continuous_actions"]
    means = live_policy(design, update).heads(seen)[0][:, :2]
    np.testing.assert_allclose(found, environment_actions(design.spec.actions, means, False), atol=1e-5)
    assert (abs(found) < 1).all()


def test_a_memory_behind_a_custom_network_is_used_twice_and_its_nodes_are_written_once():
    design = design_for(network="my_network:ResidualNetwork", folder=EXAMPLE, memory=MEMORY)
    nodes = onnx.load_from_string(exported(design)).graph.node
    assert len([node for node in nodes if node.op_type == "RandomNormalLike"]) == 1
    names = [node.name for node in nodes]
    assert len(set(names)) == len(names)


def test_a_network_that_needs_newer_operators_is_exported_with_a_later_operator_set():
    design = design_for(network="odd_networks:Later", folder=HERE, normalize=True)
    update, seen = update_for(design), seen_by(design, 5)
    model = exported(design, update)
    assert onnx.load_from_string(model).opset_import[0].version == 15
    found = run(model, inputs_for(design, seen))["deterministic_continuous_actions"]
    np.testing.assert_allclose(
        found, environment_actions(design.spec.actions, live_policy(design, update).heads(seen)[0], False), atol=1e-5
    )


@pytest.mark.lengthy
def test_all_built_in_networks_can_also_be_written_for_the_later_operator_set():
    """A custom network can be combined with any of them."""
    design = design_for(
        VECTOR,
        ObservationSpec("camera", (3, 20, 20), "uint8"),
        ObservationSpec("things", (4, 2)),
        ObservationSpec("goal", (2,), goal=True),
        normalize=True,
        memory=MEMORY,
    )
    update, seen = update_for(design), seen_by(design, 3)
    model = exported(design, update, LATER_OPSET)
    found = run(model, inputs_for(design, seen, memories=np.zeros((3, 1, 16), np.float32)))
    heads = live_policy(design, update).act(seen, None, np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(found["deterministic_continuous_actions"], heads.actions.continuous, atol=1e-5)


def test_an_operator_that_onnx_lacks_is_named_in_the_error():
    design = design_for(network="odd_networks:Odd", folder=HERE)
    with pytest.raises(StageError, match=r"network_settings.network can't be written to ONNX.*sinc"):
        onnx_model(design, update_for(design))
