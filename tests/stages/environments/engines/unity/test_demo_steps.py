"""Recorded pairs as arrays: what is written comes back exactly, whatever the behaviour observes and does."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from demo_samples import brain, episode, pair, unity_file
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.unity.demo_steps import DemoReader, DemoSteps, read_demo, write_demo
from headrace.stages.environments.engines.unity.messages import BrainParametersProto
from headrace.stages.errors import StageError

OBSERVATIONS = (
    ObservationSpec("state", (3,)),
    ObservationSpec("goal", (1,), goal=True),
    ObservationSpec("depth", (1, 6, 5)),
    ObservationSpec("grey", (1, 5, 4), "uint8"),
    ObservationSpec("two", (2, 4, 4), "uint8"),
    ObservationSpec("colour", (3, 4, 6), "uint8"),
    ObservationSpec("stacked", (7, 3, 4), "uint8"),
    ObservationSpec("things", (4, 3)),
)


def specs():
    actions = st.builds(
        lambda continuous, branches: ActionSpec(continuous, branches, masked=bool(branches)),
        st.integers(0, 3),
        st.lists(st.integers(1, 4), max_size=3).map(tuple),
    )
    seen = st.lists(st.sampled_from(OBSERVATIONS), min_size=1, max_size=4).map(tuple)
    return st.builds(
        lambda name, seen, actions: BehaviorSpec(name, seen, actions, grouped=True),
        st.sampled_from(["Ball?team=0", "Ball?team=3", "Ünïcode", "x" * 100]),
        seen,
        actions.filter(lambda spec: spec.log_prob_size),
    )


def recorded(spec, pairs, seed):
    """Random pairs of agents that come and go, in groups or not, with masks that leave a choice everywhere."""
    random = np.random.default_rng(seed)
    ended = random.random(pairs) < 0.3
    branches = spec.actions.discrete_branches
    masks = random.random((pairs, spec.actions.mask_size)) < 0.6
    starts = np.cumsum((0, *branches[:-1])) if branches else np.empty(0, int)
    masks[:, starts] = True
    masks[ended] = True
    return DemoSteps(
        spec,
        tuple(_random(random, each, pairs) for each in spec.observations),
        random.normal(size=pairs).astype(np.float32),
        ended,
        ended & (random.random(pairs) < 0.5),
        random.integers(-3, 4, pairs).astype(np.int32),
        random.uniform(-1, 1, (pairs, spec.actions.continuous_size)).astype(np.float32),
        random.integers(0, branches, (pairs, len(branches))).astype(np.int32),
        masks if branches else None,
        random.integers(0, 3, pairs).astype(np.int32),
        random.normal(size=pairs).astype(np.float32),
    )


def _random(random, spec, n):
    if spec.dtype == "uint8":
        return random.integers(0, 256, (n, *spec.shape)).astype(np.uint8)
    values = random.normal(size=(n, *spec.shape)).astype(np.float32)
    if spec.kind == "set":  # rows of zeros where there are fewer things
        values[:, spec.shape[0] // 2 :] = 0
    return values


def assert_same(found, expected):
    assert found.spec == expected.spec
    for field in DemoSteps.__dataclass_fields__:
        ours, theirs = getattr(found, field), getattr(expected, field)
        if field == "observations":
            for one, other in zip(ours, theirs, strict=True):
                assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        elif field != "spec" and theirs is not None:
            assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes()), field
    assert (found.action_masks is None) == (expected.action_masks is None)


@pytest.mark.lengthy
@examples(15)
@given(spec=specs(), pairs=st.integers(1, 12), seed=st.integers(0, 1000))
def test_written_steps_are_read_back_exactly(tmp_path_factory, spec, pairs, seed):
    path = tmp_path_factory.mktemp("round") / "a.demo"
    steps = recorded(spec, pairs, seed)
    write_demo(path, steps, "Expert")
    assert_same(read_demo(path), steps)


def test_more_pairs_than_one_chunk_are_read_back(tmp_path):
    spec = BehaviorSpec("Ball", OBSERVATIONS[:1], ActionSpec(2, (3,), masked=True), grouped=True)
    steps = recorded(spec, 1300, 0)
    write_demo(tmp_path / "a.demo", steps, "Expert")
    assert_same(read_demo(tmp_path / "a.demo"), steps)


def test_unitys_pairs_are_rows(tmp_path):
    steps = read_demo(unity_file(tmp_path / "a.demo", [*episode(2, interrupted=True), *episode(1, first=7)]))
    assert steps.spec.behavior_id == "Ball?team=0"
    np.testing.assert_allclose(steps.observations[0][:, 0], [0, 0.01, 0.02, 0.07, 0.08], rtol=1e-6)
    np.testing.assert_allclose(steps.rewards, [0, 0, 0.01, 0, 0.07], rtol=1e-6)
    assert steps.ended.tolist() == [False, False, True, False, True]
    assert steps.interrupted.tolist() == [False, False, True, False, False]


def test_masks_are_inverted_and_masks_of_endings_ignored(tmp_path):
    pairs = [
        pair([0.0], continuous=(), discrete=(1,), mask=(True, False, False)),
        pair([0.0], continuous=(), discrete=(1,)),
        pair([0.0], done=True, continuous=(), discrete=(1,), mask=(True, True, True)),
    ]
    path = unity_file(tmp_path / "a.demo", pairs, described=brain(continuous=0, branches=(3,)))
    assert read_demo(path).action_masks.tolist() == [[False, True, True], [True] * 3, [True] * 3]


def old(continuous, sizes):
    return BrainParametersProto(
        brain_name="Old", vector_action_size_deprecated=sizes, vector_action_space_type_deprecated=int(continuous)
    )


@pytest.mark.parametrize(
    ("described", "vector", "continuous", "discrete"),
    [
        (old(True, [2]), [0.25, -1.0], [0.25, -1.0], []),
        (old(False, [3, 5]), [2.0, 4.0], [], [2, 4]),
        (brain(continuous=1, branches=(4,)), [0.5, 3.0], [0.5], [3]),
    ],
)
def test_actions_of_old_packages_are_read_from_the_deprecated_field(tmp_path, described, vector, continuous, discrete):
    recorded_pair = pair([0.0], continuous=())
    recorded_pair.action_info.vector_actions_deprecated.extend(vector)
    ending = pair([0.0], done=True, continuous=())
    steps = read_demo(unity_file(tmp_path / "a.demo", [recorded_pair, ending], described=described))
    assert (steps.continuous[0].tolist(), steps.discrete[0].tolist()) == (continuous, discrete)
    assert not steps.continuous[1].any(), "an ending needs no action"


def test_a_recording_that_stopped_in_an_episode_may_end_with_a_pair_without_an_action(tmp_path):
    stopped = pair([0.9], reward=0.5, agent=3, continuous=())
    pairs = [*episode(2, agent=3)[:2], stopped, *episode(600, agent=8)[:600], pair([0.8], agent=8, continuous=())]
    steps = read_demo(unity_file(tmp_path / "a.demo", pairs))
    assert len(steps) == 604
    assert not steps.ended.any()
    for last in (2, 603):
        assert steps.continuous[last].tolist() == [0.0]


@pytest.mark.parametrize("ahead", [1, 600])
def test_a_pair_without_an_action_within_an_episode_is_named(tmp_path, ahead):
    pairs = episode(ahead + 2)
    del pairs[ahead].action_info.continuous_actions[:]
    path = unity_file(tmp_path / "a.demo", pairs)
    with pytest.raises(StageError, match=rf"a\.demo: pair {ahead + 1} has no action, although its agent continues"):
        read_demo(path)


def test_a_pair_with_another_number_of_actions_is_named(tmp_path):
    path = unity_file(tmp_path / "a.demo", [*episode(3), pair([0.0], continuous=(0.1, 0.2))])
    with pytest.raises(StageError, match=r"a\.demo: pair 5 has 2 continuous and 0 discrete actions; expected 1 and 0"):
        read_demo(path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (pair([float("nan")]), r"pair 3: observation 'state' has nan at index 0"),
        (pair([0.0], reward=float("inf")), r"pair 3: its reward is inf"),
        (pair([0.0, 1.0]), r"pair 3: observation 'state'"),
    ],
)
def test_a_pair_that_is_not_finite_or_has_another_shape_is_named(tmp_path, bad, message):
    path = unity_file(tmp_path / "a.demo", [*episode(2)[:2], bad, *episode(1)])
    with pytest.raises(StageError, match=r"a\.demo.*" + message):
        read_demo(path)


def test_a_first_pair_that_cannot_be_read_is_named(tmp_path):
    first = pair([0.0])
    first.agent_info.observations[0].dimension_properties[:] = [2]
    with pytest.raises(StageError, match=r"a\.demo.*pair 1: observation 'state'.*expected a vector"):
        read_demo(unity_file(tmp_path / "a.demo", [first]))


def test_a_recording_of_2019_is_refused_with_the_fix(tmp_path):
    """What Unity recorded then was an agent's state alone, with its floats in field 1, where a pair has a message."""
    path = unity_file(tmp_path / "a.demo", [], closed=False)
    state = b"\x0a\x08" + np.array([0.5, -1.0], "<f4").tobytes() + b"\x3d" + np.array(0.1, "<f4").tobytes()
    path.write_bytes(path.read_bytes() + 3 * (bytes([len(state)]) + state))
    with pytest.raises(
        StageError, match=r"pair 1.*recordings from before ML-Agents 1\.0 have a different format: record it"
    ):
        read_demo(path)


def test_a_file_without_a_pair_is_refused(tmp_path):
    with pytest.raises(StageError, match=r"a\.demo: it contains no steps"):
        read_demo(unity_file(tmp_path / "a.demo", [], closed=False))


def test_lost_pairs_of_a_truncated_file_are_reported_and_the_rest_is_used(tmp_path, caplog):
    path = unity_file(tmp_path / "a.demo", episode(4), closed=False)
    path.write_bytes(path.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        assert len(read_demo(path)) == 4
    assert "a.demo: truncated or damaged: pair 5" in caplog.text
    assert "the data before that is used" in caplog.text


def test_images_are_written_as_png_with_their_dimension_properties(tmp_path):
    spec = BehaviorSpec("Ball", OBSERVATIONS, ActionSpec(1))
    write_demo(tmp_path / "a.demo", replace(recorded(spec, 2, 0), agent_ids=np.array([7, 7], np.int32)), "Expert")
    protos = next(iter(DemoReader(tmp_path / "a.demo"))).agent_info.observations
    assert [proto.compression_type for proto in protos] == [0, 0, 0, 1, 1, 1, 1, 0]
    assert [len(proto.compressed_data.split(b"\x89PNG\r\n\x1a\n")) - 1 for proto in protos[3:7]] == [1, 1, 1, 3]
    properties = [list(proto.dimension_properties) for proto in protos]
    assert properties == [[1], [1], *[[1, 2, 2]] * 5, [4, 1]]
