"""Models of policies whose environment has an action space of its own give actions in its units, and say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from gymnasium import spaces
from onnx_samples import design_for, exported, inputs_for, run, seen_by, update_for

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec
from headrace.stages.action_units import action_units
from headrace.stages.environments.spaces.columns import action_mapping
from headrace.stages.environments.spaces.own_space import own_space, plain_spaces
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx.actor import convert_to_units
from headrace.stages.policy.onnx.export import ExportedModule, write_model
from headrace.stages.policy.onnx.model import onnx_model

OURS = ["policy_continuous_actions", "policy_deterministic_continuous_actions"]


def design_of(space, **how):
    design = design_for(actions=action_mapping(own_space(space), 1, "").spec, **how)
    described = plain_spaces(own_space(spaces.Box(-1, 1, (3,))), own_space(space))
    return replace(design, spec=replace(design.spec, spaces=described))


def test_the_actions_before_conversion_follow_the_outputs_of_the_format():
    same, other = (
        [output.name for output in onnx.load_from_string(exported(design_of(spaces.Box(low, high, (2,))))).graph.output]
        for low, high in ((-1, 1), (-2, 2))
    )
    assert same == [output.name for output in onnx.load_from_string(exported(design_for())).graph.output]
    assert other == same + OURS


def test_a_memory_holds_the_actions_before_conversion():
    designs = [
        design_of(spaces.Box(-1, high, (2,)), memory={"memory_size": 6, "sequence_length": 4}) for high in (1, 9)
    ]
    seen, memories = seen_by(designs[0], 4), np.zeros((4, 1, 16), np.float32)
    one, other = (run(exported(each), inputs_for(each, seen, None, memories)) for each in designs)
    np.testing.assert_array_equal(one["recurrent_out"][..., 8:], other["recurrent_out"][..., 8:])
    np.testing.assert_array_equal(one["deterministic_continuous_actions"], other[OURS[1]])


class Conversion(ExportedModule):
    """Nothing but the conversion of 3 actions."""

    def __init__(self, units):
        super().__init__()
        self.inputs = {"given": (3,)}
        self.units = units

    def outputs(self, *inputs):
        (given,) = inputs
        return {"found": convert_to_units(given, self.units)}


@pytest.mark.parametrize("opset", [9, 15])
def test_integers_are_those_that_the_environment_stage_rounds_to(opset):
    space = spaces.Dict(
        few=spaces.Box(0, 1, (1,), np.int8), many=spaces.Box(-8, 8, (1,), np.int64), free=spaces.Box(-1, 2)
    )
    spec = design_of(space).spec
    rows = np.tile(np.linspace(-1, 1, 33, dtype=np.float32)[:, None], (1, 3))
    model = write_model(Conversion(action_units(spec)), "Test", "the conversion", opset)
    assert not {node.op_type for node in onnx.load_from_string(model).graph.node} & {"Round", "Where"}
    found = run(model, {"given": rows})["found"]
    actions = ActionBatch(rows, np.empty((len(rows), 0), np.int32))
    wanted = action_mapping(own_space(space), len(rows), "").to_environment(actions)
    assert {-6.5, 0.5, 5.5} <= {*(8 * rows[:, 2]).tolist()}, "numbers in the middle between two integers"
    for column, key in enumerate(space):
        np.testing.assert_allclose(found[:, column], wanted[key].reshape(-1), atol=1e-6 * (key == "free"))


def test_a_space_that_does_not_fit_the_policy_is_refused():
    design = design_of(spaces.Box(-2, 2, (2,)))
    other = replace(design, spec=replace(design.spec, actions=ActionSpec(3)))
    with pytest.raises(StageError, match="Test: the policy has 3 continuous actions, but .* spec has 2"):
        onnx_model(other, update_for(other))
