"""What an `.onnx` file says of itself: the spec with its names and spaces, and the step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx_samples import design_for, update_for

from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx.contract import NOTES, read_notes
from headrace.stages.policy.onnx.model import onnx_model
from headrace.stages.policy.onnx.runtime import stated_notes

PICTURE = ObservationSpec("camera", (20, 20, 3), "uint8", channels_last=True)


def test_a_model_says_its_spec_with_names_dtypes_and_spaces_and_its_step(tmp_path):
    design = design_for(PICTURE, actions=ActionSpec(2, unbounded=(1,)))
    design = replace(design, spec=replace(design.spec, spaces={"observation": {"kind": "Discrete"}}))
    path = Path(tmp_path / "Any.onnx")
    path.write_bytes(onnx_model(design, update_for(design, step=1234)))

    notes = stated_notes(path, "Any")

    assert notes == (design.spec, 1234)
    assert notes[0].spaces == design.spec.spaces
    onnx.checker.check_model(onnx.load(path))


def test_a_model_of_another_program_is_read_by_its_inputs(tmp_path):
    design = design_for(PICTURE)
    model = onnx.load_from_string(onnx_model(design, update_for(design)))
    del model.metadata_props[:]
    path = Path(tmp_path / "Any.onnx")
    path.write_bytes(model.SerializeToString())

    spec, step = stated_notes(path, "Any")

    assert (spec.observations, step) == ((ObservationSpec("obs_0", (3, 20, 20)),), 0)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"spec": {}, "step": 1}', json.dumps({"spec": 3, "step": 1}), "[" * 10_000]
)
def test_notes_that_are_none_are_refused_with_the_file(text):
    with pytest.raises(
        StageError, match=r"^Any\.onnx: its property 'headrace' is not in the format that Headrace writes"
    ):
        read_notes({NOTES: text}, "Any.onnx")
