"""A model for Godot gives the addon's reader what the live policy does, whatever the keys of a game."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_samples import MEMORY, design_for, live_policy, update_for

from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx.model import difference, onnx_model, remark_on_order

ROWS = 64


def key(name, kind, size):
    return {"name": name, "action_type": kind, "size": size}


MOVE, TURN = key("move", "continuous", 2), key("turn", "continuous", 1)
LANE, JUMP = key("lane", "discrete", 3), key("jump", "discrete", 2)


def game(*keys, observations=(("obs", 5),), ordered=True, **settings):
    """The design of a policy for a game with these keys; an observation with a negative size is a discrete one."""
    actions = ActionSpec(
        sum(each["size"] for each in keys if each["action_type"] == "continuous"),
        tuple(each["size"] for each in keys if each["action_type"] == "discrete"),
    )
    announced = {
        name: {"space": "discrete", "size": -size} if size < 0 else {"space": "box", "size": [size]}
        for name, size in observations
    }
    specs = [ObservationSpec(name, (abs(size),)) for name, size in observations]
    design = design_for(*specs, actions=actions, **settings)
    spaces = {"godot": {"observations": announced, "actions": list(keys), "ordered": ordered}}
    return replace(design, spec=replace(design.spec, spaces=spaces))


def read_by_the_addon(design, output):
    """Each agent's actions by key, as ONNXModel.cs and ncnn_inference's reader take them from `output`."""
    keys = design.spec.spaces["godot"]["actions"]
    means_only = all(each["action_type"] == "continuous" for each in keys) and output.shape[1] == sum(
        each["size"] for each in keys
    )
    found, at = {}, 0
    for each in keys:
        values = output[:, at : at + each["size"]]
        at += each["size"]
        if each["action_type"] == "discrete":
            found[each["name"]] = values.argmax(axis=1)
        else:
            found[each["name"]] = values.clip(-1, 1)
            at += 0 if means_only else each["size"]
    assert at == output.shape[1], "a value is left over, or one is missing"
    return found


def by_key(design, actions):
    found, column, branch = {}, 0, 0
    for each in design.spec.spaces["godot"]["actions"]:
        if each["action_type"] == "discrete":
            found[each["name"]] = actions.discrete[:, branch]
            branch += 1
        else:
            found[each["name"]] = actions.continuous[:, column : column + each["size"]]
            column += each["size"]
    return found


GAMES = {
    "one continuous key": game(MOVE),
    "continuous keys": game(TURN, MOVE),
    "one discrete key": game(LANE),
    "discrete keys": game(JUMP, LANE),
    "both, mixed": game(LANE, MOVE, JUMP, TURN),
    "both, the continuous ones last": game(JUMP, TURN),
    "several observations": game(MOVE, observations=(("sight", 3), ("obs", 2))),
    "a discrete observation": game(LANE, TURN, observations=(("gear", -4), ("obs", 2))),
    "normalised": game(MOVE, observations=(("gear", -4), ("obs", 2)), normalize=True),
    "squashed": game(MOVE, JUMP, squashed=True),
}


@pytest.mark.parametrize("design", GAMES.values(), ids=GAMES)
def test_the_addon_reads_the_policys_actions(design):
    update = update_for(design)
    model = onnx_model(design, update)
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    session = onnxruntime.InferenceSession(model)
    assert [each.name for each in session.get_outputs()] == ["output", "state_outs"]
    assert isinstance(session.get_outputs()[0].shape[1], int), "the addon reads the width from the model"
    random = np.random.default_rng(1)
    seen, given = [], {"state_ins": np.ones(ROWS, np.float32)}
    for name, each in design.spec.spaces["godot"]["observations"].items():
        if each["space"] == "discrete":
            numbers = random.integers(0, each["size"], ROWS)
            seen.append(np.eye(each["size"], dtype=np.float32)[numbers])
            given[name] = numbers[:, None].astype(np.float32)
        else:
            seen.append(random.standard_normal((ROWS, *each["size"])).astype(np.float32))
            given[name] = seen[-1]
    assert {each.name for each in session.get_inputs()} == given.keys()
    output, state = session.run(None, given)
    assert np.array_equal(state, given["state_ins"])
    acted = live_policy(design, update).act(tuple(seen), None, random, True).actions
    expected, found = by_key(design, acted), read_by_the_addon(design, output)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)
    assert difference(design, update, model) is None


@pytest.mark.parametrize(
    ("keys", "words"), [((MOVE,), "continuous actions differ"), ((LANE, JUMP), "discrete actions differ")]
)
def test_a_model_that_acts_otherwise_is_found_out(keys, words):
    design = game(*keys)
    model = onnx_model(design, update_for(design, seed=1))
    assert words in str(difference(design, update_for(design, seed=2), model))


@pytest.mark.parametrize(
    ("design", "words"),
    [
        (game(MOVE, memory=MEMORY), ("memory", "--inference")),
        (
            replace(
                game(MOVE),
                spec=replace(game(MOVE).spec, observations=(ObservationSpec("cam2d", (3, 36, 36), "uint8"),)),
            ),
            ("images", "cam2d", "--inference"),
        ),
    ],
    ids=["memory", "pictures"],
)
def test_designs_that_the_addon_cannot_run_are_refused_with_the_reason(design, words):
    with pytest.raises(StageError) as refusal:
        onnx_model(design, update_for(design))
    assert all(word in str(refusal.value) for word in words)


@pytest.mark.parametrize(
    ("design", "warned"),
    [
        (game(JUMP, LANE, ordered=False), True),
        (game(JUMP, ordered=False), False),
        (game(LANE, JUMP), False),
    ],
)
def test_an_order_that_may_have_been_lost_is_reported(design, warned):
    text = remark_on_order(design.spec)
    assert (text is not None) == warned
    assert text is None or "jump, lane" in text
