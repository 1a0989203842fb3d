"""An exported model does what the live policy does, for every kind of network and action."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx_samples import (
    CONTINUOUS,
    MEMORY,
    VECTOR,
    design_for,
    exported,
    inputs_for,
    live_policy,
    masks_for,
    run,
    seen_by,
    update_for,
    with_logits,
)

from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.network.layers import ACTIVATIONS
from headrace.stages.policy.onnx.model import onnx_model, remark_on_rounding
from headrace.stages.policy.protocol import Recall
from headrace.stages.policy.sampling import action_features, environment_actions, first_action_features

MASKED = ActionSpec(0, (3, 2), masked=True)
HYBRID = ActionSpec(2, (3, 4), masked=True)
GOAL = ObservationSpec("goal", (2,), goal=True)
THINGS = ObservationSpec("things", (4, 3))
OTHERS = ObservationSpec("others", (2, 5))


def image(side=20, channels=3, dtype="uint8", **how):
    shape = (side, side + 2, channels) if how.get("channels_last") else (channels, side, side + 2)
    return ObservationSpec("camera", shape, dtype, **how)


DESIGNS = {
    "continuous": design_for(),
    "continuous, squashed": design_for(squashed=True),
    "one discrete branch": design_for(actions=ActionSpec(0, (4,), masked=True)),
    "branches": design_for(actions=MASKED),
    "hybrid": design_for(actions=HYBRID),
    "hybrid, squashed": design_for(actions=HYBRID, squashed=True),
    "gSDE": design_for(actions=HYBRID, gsde={}),
    "gSDE, squashed": design_for(actions=HYBRID, squashed=True, gsde={"clip_mean": 0.05}),
    "unbounded actions": design_for(actions=ActionSpec(3, unbounded=(0, 2))),
    "normalised": design_for(VECTOR, ObservationSpec("more", (4,)), normalize=True),
    "a single number": design_for(VECTOR, ObservationSpec("height", ())),
    "bytes as a vector": design_for(ObservationSpec("ram", (6,), "uint8")),
    **{f"{name} units": design_for(activation=name) for name in ACTIVATIONS if name != "swish"},
    "one layer": design_for(num_layers=1),
    "layers of different widths": design_for(hidden_units=[12, 5, 7], num_layers=None),
    "layers of different widths, with a goal and an image": design_for(
        image(), GOAL, hidden_units=[12, 6], num_layers=None
    ),
    "simple": design_for(image(), VECTOR),
    "simple alone": design_for(image()),
    "simple, floats": design_for(image(dtype="float32")),
    "simple, channels last": design_for(image(channels_last=True), VECTOR),
    "nature_cnn": design_for(image(36), VECTOR, vis_encode_type="nature_cnn"),
    "resnet": design_for(image(17), vis_encode_type="resnet"),
    "match3": design_for(image(8, channels=6), vis_encode_type="match3", actions=MASKED),
    "fully_connected": design_for(image(5), VECTOR, vis_encode_type="fully_connected"),
    "fully_connected, channels last": design_for(image(5, channels_last=True), vis_encode_type="fully_connected"),
    "two images": design_for(image(), image(24, channels=1), VECTOR, normalize=True),
    "a set": design_for(VECTOR, THINGS),
    "a set alone": design_for(THINGS, actions=MASKED),
    "two sets beside an image": design_for(THINGS, image(), OTHERS, VECTOR, normalize=True),
    "a goal": design_for(VECTOR, GOAL),
    "a goal, one layer": design_for(GOAL, VECTOR, num_layers=1, normalize=True),
    "a goal without conditioning": design_for(VECTOR, GOAL, goal_conditioning_type="none"),
    "an image as a goal": design_for(VECTOR, image(goal=True), GOAL),
    "goals and sets": design_for(VECTOR, GOAL, THINGS, actions=HYBRID),
}
RECURRENT = {
    "continuous": design_for(memory=MEMORY),
    "squashed": design_for(memory=MEMORY, squashed=True, normalize=True),
    "branches": design_for(memory=MEMORY, actions=MASKED),
    "hybrid": design_for(memory=MEMORY, actions=HYBRID),
    "hybrid with goals, sets and images": design_for(VECTOR, GOAL, THINGS, image(), memory=MEMORY, actions=HYBRID),
}


FEW_ROWS = ("continuous", "hybrid", "two images", "goals and sets", "a set alone")


@functools.cache
def of(name):
    """A design of the table, a policy of it, and its model."""
    design = DESIGNS[name]
    update = update_for(design)
    return design, update, exported(design, update)


def head_slices(design):
    """Of the heads [d, H]: the means' columns and the first logit's."""
    return slice(0, design.spec.actions.continuous_size), design.head_size - design.spec.actions.mask_size


def assert_acts_alike(design, found, heads, masks):
    """Deterministic actions and masked logits of a model against a live policy's heads."""
    actions, (means, logits_at) = design.spec.actions, head_slices(design)
    if actions.continuous_size:
        mu = np.tanh(heads[:, means]) if design.squashed else heads[:, means]
        expected = environment_actions(actions, mu, design.squashed)
        np.testing.assert_allclose(found["deterministic_continuous_actions"], expected, atol=1e-5)
    at = 0
    for branch, size in enumerate(actions.discrete_branches):
        logits, allowed = heads[:, logits_at + at : logits_at + at + size], masks[:, at : at + size]
        got = found[f"logits_{branch}"]
        np.testing.assert_allclose(got[allowed], logits[allowed], atol=1e-5)
        assert (got[~allowed] == -1e8).all()
        best = np.where(allowed, logits, -np.inf).argmax(axis=1)
        np.testing.assert_array_equal(found["deterministic_discrete_actions"][:, branch], best)
        at += size


@pytest.mark.parametrize(("name", "rows"), [*((name, 5) for name in DESIGNS), *((name, 1) for name in FEW_ROWS)])
def test_its_deterministic_actions_are_the_policys(name, rows):
    design, update, model = of(name)
    seen = seen_by(design, rows)
    masks = masks_for(design, rows) if design.spec.actions.masked else None
    heads = live_policy(design, update).heads(seen)
    heads = heads[0] if isinstance(heads, tuple) else heads
    found = run(with_logits(model), inputs_for(design, seen, masks))
    assert np.abs(heads).max() > 0.05, "weights so small would prove nothing"
    assert_acts_alike(design, found, heads, masks)


@pytest.mark.parametrize("name", DESIGNS)
def test_zeros_for_everything_give_finite_actions_that_there_are(name):
    """Unity runs a model once on zeros, masks of zeros among them."""
    design, _, model = of(name)
    seen = tuple(np.zeros_like(observation) for observation in seen_by(design, 1))
    choices = design.spec.actions.mask_size
    found = run(model, inputs_for(design, seen, np.zeros((1, choices)) if choices else None))
    assert all(np.isfinite(array).all() for array in found.values())
    for name in ("discrete_actions", "deterministic_discrete_actions"):
        if choices:
            assert ((found[name] >= 0) & (found[name] < design.spec.actions.discrete_branches)).all()


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("design", "kind", "rows"),
    [
        pytest.param(design, kind, 1 + 4 * ((number + place) % 2), id=f"{name}-{kind}")
        for number, (name, design) in enumerate(RECURRENT.items())
        for place, kind in enumerate(("continuous_actions", "deterministic_continuous_actions"))
    ],
)
def test_a_recurrent_model_follows_the_policy_with_drawn_and_with_deterministic_actions(design, kind, rows):
    """The environment takes drawn actions, or deterministic ones; the policy gets the actions that were taken."""
    update = update_for(design)
    policy, model = live_policy(design, update), with_logits(exported(design, update))
    actions, drawn = design.spec.actions, kind == "continuous_actions"
    half = design.memory_size + design.previous_action_size
    memories = np.zeros((rows, 1, 2 * half), np.float32)
    mine = memories[:, :, :half] if drawn else memories[:, :, half:]
    recall = Recall(
        np.zeros((rows, design.memory_size), np.float32), np.tile(first_action_features(actions), (rows, 1))
    )
    for tick in range(4):
        seen = seen_by(design, rows, seed=tick)
        masks = masks_for(design, rows, seed=tick) if actions.masked else None
        heads, _, after = policy.heads(seen, recall)
        found = run(model, inputs_for(design, seen, masks, memories), seed=tick)
        if not drawn:
            assert_acts_alike(design, found, heads, masks)
        prefix = "" if drawn else "deterministic_"
        continuous = found.get(f"{prefix}continuous_actions", np.zeros((rows, 0), np.float32))
        discrete = found.get(f"{prefix}discrete_actions", np.zeros((rows, 0), np.int64))
        recall = Recall(after, action_features(actions, continuous, discrete))
        memories = found["recurrent_out"]
        assert memories.shape == (rows, 1, 2 * half)
        mine = memories[:, 0, :half] if drawn else memories[:, 0, half:]
        np.testing.assert_allclose(mine[:, : design.memory_size], after, atol=1e-5)
        previous = mine[:, design.memory_size :] + first_action_features(actions)
        np.testing.assert_allclose(previous, recall.previous_actions, atol=1e-6)


def test_drawn_continuous_actions_are_distributed_as_the_policys():
    for squashed in (False, True):
        design = design_for(squashed=squashed)
        update, rows = update_for(design), 20_000
        seen = (np.repeat(seen_by(design, 1)[0], rows, axis=0),)
        found = run(exported(design, update), inputs_for(design, seen), seed=3)["continuous_actions"]
        expected = live_policy(design, update).act(seen, None, np.random.default_rng(1)).actions.continuous
        assert np.abs(found).max() <= 1
        assert found.std(axis=0).min() > 0.05
        np.testing.assert_allclose(found.mean(axis=0), expected.mean(axis=0), atol=0.02)
        np.testing.assert_allclose(found.std(axis=0), expected.std(axis=0), atol=0.02)
        for share in (0.1, 0.5, 0.9):
            got, wanted = np.quantile(found, share, axis=0), np.quantile(expected, share, axis=0)
            np.testing.assert_allclose(got, wanted, atol=0.04)


@pytest.mark.parametrize("squashed", [False, True])
def test_of_gsde_drawn_actions_are_the_mean_too(squashed):
    design = design_for(squashed=squashed, gsde={})
    found = run(exported(design), inputs_for(design, seen_by(design, 3)))
    np.testing.assert_array_equal(found["continuous_actions"], found["deterministic_continuous_actions"])


def test_drawn_discrete_actions_are_distributed_as_the_policys_and_never_forbidden_ones():
    design = design_for(actions=ActionSpec(0, (4, 3), masked=True))
    update, rows = update_for(design), 20_000
    seen = (np.repeat(seen_by(design, 1)[0], rows, axis=0),)
    masks = np.tile([True, False, True, True, True, True, True], (rows, 1))
    found = run(exported(design, update), inputs_for(design, seen, masks), seed=4)["discrete_actions"]
    logits = live_policy(design, update).heads((seen[0][:1],))[0]
    for branch, columns in enumerate((slice(0, 4), slice(4, 7))):
        weights = np.exp(logits[columns]) * masks[0, columns]
        expected = rows * weights / weights.sum()
        counted = np.bincount(found[:, branch], minlength=len(weights))
        assert counted[expected == 0].sum() == 0
        there = expected > 0
        chi_square = (np.square(counted - expected)[there] / expected[there]).sum()
        assert chi_square < 18, "beyond what chance does once in 10,000 times with 2 or 3 choices"


def test_actions_of_several_agents_are_drawn_apart():
    design = design_for()
    seen = (np.zeros((6, 3), np.float32),)
    found = run(exported(design), inputs_for(design, seen))["continuous_actions"]
    assert len(np.unique(found[:, 0])) == 6


@pytest.mark.lengthy
def test_models_avoid_operators_that_are_unreliable_in_unity():
    used = set()
    models = [of(name)[2] for name in DESIGNS]
    models += [onnx_model(design, update_for(design)) for design in RECURRENT.values()]
    for model in map(onnx.load_from_string, models):
        assert [(made.domain, made.version) for made in model.opset_import] == [("", 9)]
        used |= {node.op_type for node in model.graph.node}
    assert not used & {"Split", "Expand", "Shape", "ConstantOfShape", "Tile", "NonZero", "Loop", "If", "Where"}


def test_the_same_policy_gives_the_same_file():
    design = design_for(VECTOR, THINGS, memory=MEMORY, actions=HYBRID)
    assert onnx_model(design, update_for(design)) == onnx_model(design, update_for(design))


def test_an_export_does_not_change_torchs_global_random_state():
    design = design_for(actions=HYBRID)
    before = torch.random.get_rng_state()
    onnx_model(design, update_for(design))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_policy_of_another_network_is_refused():
    with pytest.raises(StageError, match=r"expected tensor .* \(3, 16\), got \(3, 8\)"):
        onnx_model(design_for(), update_for(design_for(hidden_units=8)))
    with pytest.raises(StageError, match="normalize"):
        onnx_model(design_for(normalize=True), update_for(design_for()))


def test_of_float64_a_model_subtracts_the_whole_mean_of_what_it_is_given_in_float32():
    design = design_for(ObservationSpec("time", (3,), "float64"), normalize=True)
    update = update_for(design)
    rest = np.array([3e-6, -3e-6, 1e-6], np.float32)
    tensors = {
        **update.tensors(),
        "normalizer.mean": np.array([100, -100, 50], np.float32),
        "normalizer.mean_rest": rest,
    }
    tensors["normalizer.inverse_std"] = np.array([1e5, 1e5, 1e5], np.float32)
    layout = (*update.layout, ("normalizer.mean_rest", (3,)))
    update = replace(update, layout=layout, weights=np.concatenate([tensors[n].reshape(-1) for n, _ in layout]))
    seen = (np.array([[100, -100, 50]], np.float32).astype(np.float64),)
    found = run(exported(design, update), inputs_for(design, seen))
    expected = live_policy(design, update).act(seen, None, np.random.default_rng(0), True).actions.continuous
    np.testing.assert_allclose(found["deterministic_continuous_actions"], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "mean", "deviation", "steps"),
    [
        ("float64", 1.7e9, 30, 128),
        ("float64", -1.7e9, 30, 128),
        ("float64", 1.7e9, 3000, None),
        ("float64", 100, 1, None),
        ("float32", 1.7e9, 30, None),
    ],
)
def test_rounding_to_float32_that_hides_differences_is_reported_with_the_observation(dtype, mean, deviation, steps):
    clock = ObservationSpec("clock", (2,), dtype)
    spec = design_for(ObservationSpec("other", (1,), "float64"), clock, normalize=True).spec
    tensors = {
        "normalizer.mean": np.array([0, 5, mean], np.float32),
        "normalizer.inverse_std": np.array([1, 1, 1 / deviation], np.float32),
    }
    text = remark_on_rounding(spec, tensors)
    assert (text is not None) == (steps is not None)
    if text is not None:
        assert f"'clock' at [1] (about 1.7e+09 ± {deviation}) to steps of {steps}, so" in text
    assert remark_on_rounding(spec, {}) is None


def test_continuous_actions_alone_need_no_masks():
    assert design_for(actions=CONTINUOUS).spec.actions.mask_size == 0
    assert [given.name for given in onnx.load_from_string(exported(design_for())).graph.input] == ["obs_0"]
