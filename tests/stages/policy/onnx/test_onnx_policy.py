"""Acting by models: ours decide as the policy does, others' play if they are of the same format, and misfits are named."""

from __future__ import annotations

import builtins

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_samples import MEMORY, VECTOR, design_for, live_policy, masks_for, seen_by, update_for

from headrace.queues.columns import decision_columns
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.onnx.contract import is_damaged
from headrace.stages.policy.onnx.model import onnx_model
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy
from headrace.stages.policy.protocol import Recall

HYBRID = ActionSpec(2, (3, 2), masked=True)
CAMERA = ObservationSpec("camera", (20, 22, 3), "uint8", channels_last=True)
RANDOM = np.random.default_rng(0)


def model_of(design):
    return onnx_model(design, update_for(design))


def both(design):
    """The live policy, and the one that plays its model."""
    update = update_for(design)
    return live_policy(design, update), OnnxPolicy(onnx_model(design, update), design)


@pytest.mark.parametrize("squashed", [False, True])
def test_an_onnx_policy_decides_like_the_exported_policy(squashed):
    design = design_for(VECTOR, CAMERA, ObservationSpec("height", ()), actions=HYBRID, squashed=squashed)
    seen, masks = seen_by(design, 6), masks_for(design, 6)
    ours, theirs = (p.act(seen, masks, RANDOM, deterministic=True) for p in both(design))
    np.testing.assert_allclose(ours.actions.continuous, theirs.actions.continuous, atol=1e-5)
    np.testing.assert_array_equal(ours.actions.discrete, theirs.actions.discrete)
    # An action at the end of its range tells no more where beyond it was drawn.
    limited = np.clip(ours.columns["continuous_actions"], *((-1, 1) if squashed else (-3, 3)))
    np.testing.assert_allclose(limited, theirs.columns["continuous_actions"], atol=1e-4)


def test_with_a_memory_it_decides_as_the_policy_over_an_episode():
    design = design_for(actions=HYBRID, memory=MEMORY)
    policies = both(design)
    recalls: list[Recall | None] = [None, None]
    for tick in range(4):
        seen = seen_by(design, 3, seed=tick)
        made = [p.act(seen, None, RANDOM, deterministic=True, recall=r) for p, r in zip(policies, recalls, strict=True)]
        recalls = [decision.recall for decision in made]
        np.testing.assert_allclose(made[0].actions.continuous, made[1].actions.continuous, atol=1e-5)
        np.testing.assert_array_equal(made[0].actions.discrete, made[1].actions.discrete)
    assert recalls[1].memories.shape == (3, 26)


def test_agents_memories_of_it_are_kept_as_any_others():
    design = design_for(actions=HYBRID, memory=MEMORY)
    policy = both(design)[1]
    store = AgentMemories.for_policy(policy, HYBRID)
    ids, episodes = np.array([4, 9]), np.array([0, 0])
    decision = policy.act(seen_by(design, 2), None, RANDOM, recall=store.recall(ids, episodes))
    store.keep(ids, episodes, decision.recall)
    again = store.recall(ids, episodes)
    np.testing.assert_array_equal(again.memories, decision.recall.memories)
    np.testing.assert_array_equal(again.previous_actions, decision.recall.previous_actions)


def test_its_decisions_have_the_columns_that_trajectories_are_made_of():
    design = design_for(actions=HYBRID)
    decision = both(design)[1].act(seen_by(design, 5), None, RANDOM)
    for column in decision_columns(design.spec):
        if not column.name.startswith("obs_"):
            made = decision.columns[column.name]
            assert (made.shape, made.dtype.name) == ((5, *column.shape), column.dtype), column.name


def test_an_empty_batch_gives_no_actions():
    for memory in (None, MEMORY):
        design = design_for(actions=HYBRID, memory=memory)
        decision = both(design)[1].act(seen_by(design, 0), np.ones((0, 5), bool), RANDOM)
        assert decision.actions.continuous.shape == decision.actions.discrete.shape == (0, 2)


def test_an_onnx_policy_accepts_a_version_number_but_no_weights():
    design = design_for()
    policy = both(design)[1]
    assert policy.version == -1
    policy.load(PolicyUpdate("Test", 0, np.empty(0, np.float32), (), 700))
    assert policy.version == 0
    with pytest.raises(StageError, match="can't be replaced"):
        policy.load(update_for(design))


# Models that others have made. ---------------------------------------------------------------------------------------


def others_model(version=3.0, memory=0, sizes=(2,), continuous=0, observed=(3,), unused=True, batch="batch", nan=False):
    """A model as ML-Agents writes them: unused inputs may be there, and constants come of initializers."""
    names = {
        "v": [version],
        "m": [memory],
        "d": [list(sizes)],
        "c": [continuous],
        "w": np.eye(observed[0])[:, : sum(sizes)],
    }
    if nan:
        names["w"] = np.full((3, sum(sizes)), np.nan)
    constants = [onnx.numpy_helper.from_array(np.array(value, np.float32), name) for name, value in names.items()]
    nodes = [
        helper.make_node("Identity", ["v"], ["version_number"]),
        helper.make_node("Identity", ["m"], ["memory_size"]),
    ]
    outputs = [("version_number", TensorProto.FLOAT, [1]), ("memory_size", TensorProto.FLOAT, [1])]
    nodes.append(helper.make_node("MatMul", ["obs_0", "w"], ["heads"]))
    if continuous:
        for name in ("continuous_actions", "deterministic_continuous_actions"):
            nodes.append(helper.make_node("Identity", ["heads"], [name]))
            outputs.append((name, TensorProto.FLOAT, [batch, continuous]))
        nodes.append(helper.make_node("Identity", ["c"], ["continuous_action_output_shape"]))
        outputs.append(("continuous_action_output_shape", TensorProto.FLOAT, [1]))
    else:
        nodes.append(helper.make_node("Mul", ["heads", "action_masks"], ["logits"]))
        for name in ("discrete_actions", "deterministic_discrete_actions"):
            nodes.append(helper.make_node("ArgMax", ["logits"], [name], axis=1, keepdims=1))
            outputs.append((name, TensorProto.INT64, [batch, 1]))
        nodes.append(helper.make_node("Identity", ["d"], ["discrete_action_output_shape"]))
        outputs.append(("discrete_action_output_shape", TensorProto.FLOAT, [1, len(sizes)]))
    inputs = [("obs_0", [batch, *observed])]
    if unused or not continuous:
        inputs.append(("action_masks", [batch, 0 if continuous else sum(sizes)]))
    if unused:
        inputs.append(("recurrent_in", [batch, 1, memory]))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(*output) for output in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4).SerializeToString()


DISCRETE = design_for(actions=ActionSpec(0, (2,), masked=True))
CONTINUOUS = design_for(actions=ActionSpec(2))


@pytest.mark.parametrize("unused", [False, True])
def test_models_of_ml_agents_act_with_and_without_unused_inputs(unused):
    seen = (np.array([[1, 2, 0], [2, 1, 0], [0.3, -0.6, 0]], np.float32),)
    policy = OnnxPolicy(others_model(unused=unused), DISCRETE)
    assert policy.act(seen, None, RANDOM).actions.discrete.tolist() == [[1], [0], [0]]
    masks = np.array([[True, False], [True, True], [True, True]])
    assert policy.act(seen, masks, RANDOM).actions.discrete.tolist() == [[0], [0], [0]]
    policy = OnnxPolicy(others_model(unused=unused, continuous=2), CONTINUOUS)
    np.testing.assert_array_equal(policy.act(seen, None, RANDOM).actions.continuous, seen[0][:, :2])


MISFITS = {
    "observation": (others_model(observed=(4,)), DISCRETE, r"obs_0 of shape \[4\].*provides 'vector' of shape \[3\]"),
    "rank": (
        model_of(design_for(ObservationSpec("things", (3, 2)), actions=DISCRETE.spec.actions)),
        DISCRETE,
        r"obs_0 of shape \[3, 2\]",
    ),
    "too few observations": (
        others_model(),
        design_for(VECTOR, ObservationSpec("radar", (7,)), actions=DISCRETE.spec.actions),
        r"no input obs_1 for the environment's 'radar'",
    ),
    "too many observations": (
        model_of(design_for(VECTOR, ObservationSpec("radar", (7,)), actions=DISCRETE.spec.actions)),
        DISCRETE,
        r"needs an input obs_1 \[7\], but the environment only provides",
    ),
    "branches": (
        model_of(design_for(actions=ActionSpec(0, (2, 2)))),
        DISCRETE,
        r"branches \[2, 2\], but the environment has 0 and \[2\]",
    ),
    "kind of actions": (others_model(), CONTINUOUS, r"0 continuous actions.*environment has 2"),
    "version": (others_model(version=4.0), DISCRETE, "version 4; expected 2 or 3"),
    "fixed batch": (others_model(batch=1), DISCRETE, "first axis is fixed"),
    "no such model": (b"nothing of the kind", DISCRETE, "not a model that onnxruntime can run"),
}


@pytest.mark.parametrize(("model", "design", "message"), MISFITS.values(), ids=MISFITS)
def test_a_model_that_does_not_fit_is_refused_with_what_differs(model, design, message):
    with pytest.raises(StageError, match=message):
        OnnxPolicy(model, design)


def test_a_flipped_bit_of_a_model_is_named_as_damage(tmp_path):
    path, model = tmp_path / "Test-1.onnx", bytearray(model_of(DISCRETE))
    OnnxPolicy(bytes(model), DISCRETE)
    model[len(model) // 2] ^= 4  # among the weights
    path.write_bytes(model)
    with pytest.raises(StageError, match=r"Test-1\.onnx: is damaged, or another program has changed it.*--export-onnx"):
        OnnxPolicy(path, DISCRETE)


def test_any_flipped_bit_of_a_model_is_noticed_but_those_of_the_words_before_its_checksum():
    model = model_of(DISCRETE)
    flips = np.random.default_rng(0).integers(0, 8 * (len(model) - 60), 200).tolist()
    assert all(
        is_damaged(model[: bit // 8] + bytes([model[bit // 8] ^ 1 << bit % 8]) + model[bit // 8 + 1 :]) for bit in flips
    )
    assert not is_damaged(model)


def test_the_checksum_is_a_property_of_the_model():
    properties = onnx.load_from_string(model_of(DISCRETE)).metadata_props
    assert [each.key for each in properties] == ["headrace", "headrace_checksum"]
    assert len(properties[-1].value) == 16


def test_models_that_other_programs_have_written_again_are_played():
    again = onnx.load_from_string(model_of(DISCRETE))
    OnnxPolicy(again.SerializeToString(), DISCRETE)
    again.doc_string += ", optimised"
    OnnxPolicy(again.SerializeToString(), DISCRETE)
    del again.metadata_props[-1]
    OnnxPolicy(again.SerializeToString(), DISCRETE)


def test_a_model_of_another_kind_is_refused_by_name(tmp_path):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    other = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [other])
    path = tmp_path / "other.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4).SerializeToString()
    )
    with pytest.raises(
        StageError, match=r"other\.onnx: is not a model in ML-Agents' format: it has no output version_number"
    ):
        OnnxPolicy(path, DISCRETE)
    with pytest.raises(StageError, match=r"absent\.onnx: can't be read: No such file"):
        OnnxPolicy(tmp_path / "absent.onnx", DISCRETE)


@pytest.mark.parametrize("place", ["weights", "./weights"])
def test_a_model_reads_no_weights_from_the_working_directory(tmp_path, monkeypatch, place):
    model = onnx.load_from_string(others_model())
    tensor = next(each for each in model.graph.initializer if each.name == "w")
    (tmp_path / "weights").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StageError, match=r"a\.onnx: is not a model that onnxruntime can run: .*[Ee]xternal data"):
        OnnxPolicy(tmp_path / "a.onnx", DISCRETE)


@pytest.mark.parametrize("size", [10**12, 10**18])
def test_a_model_of_a_huge_observation_is_refused_before_zeros_are_made(size):
    model = onnx.load_from_string(others_model())
    model.graph.input.append(helper.make_tensor_value_info("obs_1", TensorProto.FLOAT, ["batch", size]))
    with pytest.raises(StageError, match="needs more than 100,663,296 bytes or 4 s"):
        OnnxPolicy(model.SerializeToString(), DISCRETE)


def test_actions_that_are_not_numbers_do_not_reach_the_environment():
    policy = OnnxPolicy(others_model(continuous=2, nan=True), CONTINUOUS)
    with pytest.raises(NotFiniteError, match="Test"):
        policy.act((np.ones((2, 3), np.float32),), None, RANDOM)


def test_without_onnxruntime_it_says_what_to_install(monkeypatch):
    really = builtins.__import__

    def without(name, *rest, **named):
        if name == "onnxruntime":
            raise ImportError(name)
        return really(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StageError, match=r'pip install "headrace\[onnx\]"'):
        OnnxPolicy(others_model(), DISCRETE)
