"""Models of ML-Agents' older versions play: those of version 2, and those of version 3 without deterministic actions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from older_models import older_model
from onnx_samples import VECTOR, design_for, masks_for, run, seen_by, update_for

from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx.model import onnx_model
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy

DISCRETE = ActionSpec(0, (3, 2), masked=True)
HYBRID = ActionSpec(2, (2,), masked=True)
CAMERA = ObservationSpec("camera", (4, 5, 3), "uint8", channels_last=True)
MAP = ObservationSpec("map", (2, 4, 4))
THINGS = ObservationSpec("things", (3, 2))
AGE = ObservationSpec("age", ())


def generator():
    return np.random.default_rng(0)


def drawn_by_hand(logits, branches, masks):
    """The most likely allowed choice of each branch, by a loop."""
    chosen = []
    for row, allowed in zip(logits, masks, strict=True):
        start, choices = 0, []
        for size in branches:
            ranked = sorted(range(size), key=lambda choice: -row[start + choice])
            choices.append(next(choice for choice in ranked if allowed[start + choice]))
            start += size
        chosen.append(choices)
    return chosen


def test_vectors_stand_side_by_side_images_are_counted_apart_and_sets_keep_their_place():
    seen_as = {
        "visual_observation_0": (3, 4, 5),
        "vector_observation": (4,),
        "obs_2": (3, 2),
        "visual_observation_1": (2, 4, 4),
    }
    model = older_model(seen_as, branches=(3, 2))
    design = design_for(CAMERA, VECTOR, THINGS, MAP, AGE, actions=DISCRETE)
    camera, vector, things, pictured, age = seen = seen_by(design, 6)
    masks = masks_for(design, 6)
    inputs = {
        "visual_observation_0": camera.astype(np.float32).transpose(0, 3, 1, 2) / 255,
        "vector_observation": np.column_stack([vector, age]),
        "obs_2": things,
        "visual_observation_1": pictured,
        "action_masks": masks.astype(np.float32),
    }
    decided = OnnxPolicy(model, design).act(seen, masks, generator(), deterministic=True).actions
    assert decided.discrete.tolist() == drawn_by_hand(run(model, inputs)["discrete_actions"], (3, 2), masks)


def test_choices_are_drawn_by_their_probabilities_and_never_forbidden_ones():
    model = older_model({"vector_observation": (3,)}, branches=(3, 2))
    design = design_for(actions=DISCRETE)
    seen, masks = seen_by(design, 1)[0], np.array([[True, False, True, True, True]])
    rows = 20_000
    decided = OnnxPolicy(model, design).act((np.repeat(seen, rows, 0),), np.repeat(masks, rows, 0), generator())
    logs = run(model, {"vector_observation": seen, "action_masks": masks.astype(np.float32)})["discrete_actions"][0]
    shares = [
        np.bincount(column, minlength=size) / rows
        for column, size in zip(decided.actions.discrete.T, (3, 2), strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(shares), np.exp(logs), atol=0.015)
    assert shares[0][1] == 0.0


def test_the_same_generator_draws_the_same_choices():
    design = design_for(actions=DISCRETE)
    policy, seen = OnnxPolicy(older_model({"vector_observation": (3,)}, branches=(3, 2)), design), seen_by(design, 50)
    first, again = (policy.act(seen, None, generator()).actions.discrete for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first[:, 0])) == 3


def test_hybrid_actions_come_from_both_outputs():
    model = older_model({"vector_observation": (3,)}, continuous=2, branches=(2,))
    design = design_for(actions=HYBRID)
    seen = seen_by(design, 30)
    decided = OnnxPolicy(model, design).act(seen, None, generator())
    found = run(model, {"vector_observation": seen[0], "action_masks": np.ones((30, 2), np.float32)})
    np.testing.assert_allclose(decided.actions.continuous, found["continuous_actions"], atol=1e-6)
    assert set(decided.actions.discrete[:, 0].tolist()) == {0, 1}


@pytest.mark.parametrize("continuous", [0, 2])
def test_the_one_output_of_models_before_hybrid_actions_is_read(continuous):
    branches = () if continuous else (3, 2)
    model = older_model({"vector_observation": (3,)}, continuous=continuous, branches=branches, single=True)
    design = design_for(actions=ActionSpec(continuous, branches))
    seen = seen_by(design, 7)
    decided = OnnxPolicy(model, design).act(seen, None, generator(), deterministic=not continuous).actions
    inputs = {"vector_observation": seen[0]} | ({} if continuous else {"action_masks": np.ones((7, 5), np.float32)})
    found = run(model, inputs)["action"]
    if continuous:
        np.testing.assert_allclose(decided.continuous, found, atol=1e-6)
    else:
        assert decided.discrete.tolist() == drawn_by_hand(found, branches, np.ones((7, 5)))


def test_an_output_that_holds_the_last_branch_alone_is_left_for_the_one_that_holds_all():
    model = older_model({"vector_observation": (3,)}, branches=(3, 2), last_branch=True)
    design = design_for(actions=DISCRETE)
    seen = seen_by(design, 7)
    found = run(model, {"vector_observation": seen[0], "action_masks": np.ones((7, 5), np.float32)})["action"]
    decided = OnnxPolicy(model, design).act(seen, None, generator(), deterministic=True).actions.discrete
    assert decided.tolist() == drawn_by_hand(found, (3, 2), np.ones((7, 5)))


def test_a_memory_that_is_made_for_one_agent_is_kept_for_each():
    model = older_model({"vector_observation": (3,)}, branches=(3, 2), memory=True)
    design = design_for(actions=DISCRETE)
    policy = OnnxPolicy(model, design)
    assert policy.memory_size == 5
    alone, recall = np.zeros((3, 5), np.float32), None
    for tick in range(3):
        seen = seen_by(design, 3, seed=tick)
        decision = policy.act(seen, None, generator(), deterministic=True, recall=recall)
        recall = decision.recall
        for agent in range(3):
            inputs = {"vector_observation": seen[0][[agent]], "action_masks": np.ones((1, 5), np.float32)}
            found = run(model, inputs | {"recurrent_in": alone[[agent]].reshape(1, 1, 5)})
            alone[agent] = found["recurrent_out"].reshape(-1)
            assert [decision.actions.discrete[agent].tolist()] == drawn_by_hand(
                found["discrete_actions"], (3, 2), np.ones((1, 5))
            )
        np.testing.assert_allclose(recall.memories, alone, atol=1e-6)


OLDER = {"observed": {"vector_observation": (5,)}, "branches": (3, 2)}
MISFITS = {
    "vectors": (
        OLDER,
        design_for(VECTOR, AGE, actions=DISCRETE),
        r"vector_observation of shape \[5\], but the environment provides 'vector' and 'age' of shape \[4\]",
    ),
    "choices": (
        OLDER,
        design_for(ObservationSpec("v", (5,)), actions=ActionSpec(0, (3, 3))),
        r"0 continuous actions and discrete branches of 5 choices in total, but the environment has 0 and \[3, 3\]",
    ),
    "no image": (
        OLDER,
        design_for(ObservationSpec("v", (5,)), CAMERA, actions=DISCRETE),
        r"no input visual_observation_0 for the environment's 'camera'",
    ),
    "version 1": (
        OLDER | {"version": 1.0},
        design_for(ObservationSpec("v", (5,)), actions=DISCRETE),
        "expected 2 or 3",
    ),
    "version 4": (
        OLDER | {"version": 4.0},
        design_for(ObservationSpec("v", (5,)), actions=DISCRETE),
        "expected 2 or 3",
    ),
}


@pytest.mark.parametrize(("how", "design", "message"), MISFITS.values(), ids=MISFITS)
def test_an_older_model_that_does_not_fit_is_refused_with_what_differs(how, design, message):
    with pytest.raises(StageError, match=message):
        OnnxPolicy(older_model(**how), design)


# What some files lack. -----------------------------------------------------------------------------------------------


def without(model, *names, declared=False):
    """The same model without these outputs; `declared`: it still names them, and no node makes them."""
    loaded = onnx.load_from_string(model)
    for output in [output for output in loaded.graph.output if output.name in names and not declared]:
        loaded.graph.output.remove(output)
    for node in [node for node in loaded.graph.node if set(node.output) & set(names)]:
        loaded.graph.node.remove(node)
    return loaded.SerializeToString()


DETERMINISTIC = {
    "continuous": (ActionSpec(2), "deterministic_continuous_actions"),
    "discrete": (DISCRETE, "deterministic_discrete_actions"),
}


@pytest.mark.parametrize(("actions", "output"), DETERMINISTIC.values(), ids=DETERMINISTIC)
def test_a_model_without_deterministic_actions_is_refused_only_if_they_are_wanted(actions, output):
    design = design_for(actions=actions)
    model = without(onnx_model(design, update := update_for(design)), output)
    policy, seen = OnnxPolicy(model, design), seen_by(design, 4)
    decided = policy.act(seen, None, generator()).actions
    assert np.isfinite(decided.continuous).all()
    assert decided.discrete.shape == (4, len(actions.discrete_branches))
    message = rf"has no output {output}, which deterministic play needs.*without --deterministic"
    with pytest.raises(StageError, match=message):
        policy.act(seen, None, generator(), deterministic=True)
    wanted = replace(design, settings=design.settings.model_copy(update={"deterministic": True}))
    with pytest.raises(StageError, match=message):
        OnnxPolicy(model, wanted)
    assert OnnxPolicy(onnx_model(design, update), wanted).act(seen, None, generator(), deterministic=True)


def test_continuous_actions_of_version_2_are_refused_if_deterministic_ones_are_wanted():
    design = design_for(actions=HYBRID)
    policy = OnnxPolicy(older_model({"vector_observation": (3,)}, continuous=2, branches=(2,)), design)
    with pytest.raises(StageError, match="no output deterministic_continuous_actions"):
        policy.act(seen_by(design, 2), None, generator(), deterministic=True)


def test_declared_outputs_that_no_node_makes_are_ignored():
    """As Unity's own conversion of its test models to package 3.0 has left them."""
    design = design_for(actions=DISCRETE)
    whole = onnx_model(design, update_for(design))
    lost = without(whole, "memory_size", "discrete_action_output_shape", declared=True)
    seen, masks = seen_by(design, 9), masks_for(design, 9)
    ours, theirs = (OnnxPolicy(m, design).act(seen, masks, generator(), deterministic=True) for m in (whole, lost))
    np.testing.assert_array_equal(ours.actions.discrete, theirs.actions.discrete)
    with pytest.raises(StageError, match="the environment has 0 and"):
        OnnxPolicy(lost, design_for(actions=ActionSpec(0, (3, 1, 1))))


def test_a_memory_whose_stated_size_was_lost_is_kept_all_the_same():
    design = design_for(actions=DISCRETE, memory={"memory_size": 6, "sequence_length": 4})
    whole = onnx_model(design, update_for(design))
    lost = without(whole, "memory_size", declared=True)
    assert OnnxPolicy(lost, design).memory_size == OnnxPolicy(whole, design).memory_size > 0
    with pytest.raises(StageError, match="has a memory of .* numbers, but lacks recurrent_in or recurrent_out"):
        OnnxPolicy(without(whole, "recurrent_out"), design)
