"""Unity's recordings as demonstrations: which steps they are, whom they fit, and what is written into them."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from demo_samples import brain, episode, pair, unity_file
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.demonstrations import Demonstrations
from headrace.stages.trainer.imitation.loading import load_demonstrations
from headrace.stages.trainer.imitation.unity_demos import read_unity_demo, write_unity_demo

BALL = BehaviorSpec("Ball", (ObservationSpec("state", (1,)),), ActionSpec(1))
EYE = ObservationSpec("eye", (3, 4, 5), "uint8")


def test_a_step_has_its_own_observation_and_action_and_the_reward_of_the_pair_after(tmp_path):
    unity_file(tmp_path / "a.demo", [*episode(2), *episode(3, first=50)])
    found = load_demonstrations("a.demo", BALL, tmp_path)
    np.testing.assert_allclose(found.observations[0][:, 0], [0, 0.01, 0.5, 0.51, 0.52], rtol=1e-6)
    np.testing.assert_allclose(found.continuous[:, 0], [0, 0.01, 0.5, 0.51, 0.52], rtol=1e-6)
    np.testing.assert_allclose(found.rewards, [0, 0.01, 0.5, 0.51, 0.52], rtol=1e-6)
    assert found.lengths.tolist() == [2, 3]
    assert found.terminated.all()
    assert found.starts_episode.all()


def test_the_final_observation_is_kept_only_of_interrupted_episodes(tmp_path):
    unity_file(tmp_path / "a.demo", [*episode(2, interrupted=True), *episode(3)])
    found = load_demonstrations("a.demo", BALL, tmp_path)
    assert found.terminated.tolist() == [False, True]
    np.testing.assert_allclose(found.final_observations[0], np.array([[0.02], [0.0]]))


def test_the_last_pair_of_a_recording_that_stopped_in_an_episode_is_what_followed(tmp_path):
    unity_file(tmp_path / "a.demo", [*episode(1), *episode(4, first=10)[:3]])
    found = read_unity_demo(tmp_path / "a.demo", "Ball")
    assert found.lengths.tolist() == [1, 2]
    assert found.terminated.tolist() == [True, False]
    np.testing.assert_allclose(found.final_observations[0][1], [0.12])


def test_agents_that_were_recorded_in_between_each_other_are_separated(tmp_path):
    mixed = [each for two in zip(episode(3, agent=9), episode(3, agent=4, first=20), strict=True) for each in two]
    unity_file(tmp_path / "a.demo", [*mixed, *episode(1, agent=9, first=40)])
    found = read_unity_demo(tmp_path / "a.demo", "Ball")
    assert found.lengths.tolist() == [3, 3, 1], "in the order in which began"
    np.testing.assert_allclose(found.continuous[:, 0] * 100, [0, 1, 2, 20, 21, 22, 40], rtol=1e-5)
    np.testing.assert_allclose(found.rewards * 100, [0, 1, 2, 20, 21, 22, 40], rtol=1e-5)


def test_a_folder_stands_for_all_its_recordings_whatever_their_behaviours_are_called(tmp_path):
    demos = tmp_path / "demos"
    demos.mkdir()
    unity_file(demos / "b.demo", episode(3), described=brain("My Behavior?team=1"))
    unity_file(demos / "a.demo", episode(2))
    assert load_demonstrations("demos", BALL, tmp_path).lengths.tolist() == [2, 3]
    assert load_demonstrations("demos", "Ball", tmp_path).spec == replace(
        BALL, actions=ActionSpec(1), observations=(ObservationSpec("state", (1,)),)
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(BALL, actions=ActionSpec(2)), r"actions: expected 2 continuous, .*, found 1 continuous"),
        (replace(BALL, actions=ActionSpec(1, (2,))), r"actions: expected 1 continuous, discrete branches \[2\], found"),
        (replace(BALL, observations=(ObservationSpec("s", (2,)),)), r"expected shape \(2,\).*found shape \(1,\)"),
        (replace(BALL, observations=(*BALL.observations, EYE)), r"the number of observations: expected 2, found 1"),
    ],
)
def test_a_recording_of_other_observations_or_actions_is_refused_with_both(tmp_path, spec, message):
    unity_file(tmp_path / "a.demo", episode(2))
    with pytest.raises(StageError, match=r"a\.demo: demonstrations of Ball\?team=0 do not fit Ball: .*" + message):
        load_demonstrations("a.demo", spec, tmp_path)


def test_actions_that_a_policy_cannot_take_are_replaced_by_the_nearest_with_a_warning(tmp_path, caplog):
    pairs = [pair([0.0], continuous=(2.5,)), pair([0.0], continuous=(-0.5,)), pair([0.0], done=True)]
    unity_file(tmp_path / "a.demo", pairs)
    with caplog.at_level(logging.WARNING):
        assert load_demonstrations("a.demo", BALL, tmp_path).continuous.tolist() == [[1], [-0.5]]
    assert "a.demo: 1 of 2 steps have continuous actions outside [-1, 1], the largest 2.5" in caplog.text


def test_a_file_that_is_not_a_demonstration_is_refused(tmp_path):
    (tmp_path / "a.demo").write_text("no")
    with pytest.raises(StageError, match=r"a\.demo: not a demonstration"):
        load_demonstrations("a.demo", BALL, tmp_path)


def seen(dtype, channels_last=False):
    shape = (4, 5, 3) if channels_last else (3, 4, 5)
    return replace(BALL, observations=(ObservationSpec("eye", shape, dtype, channels_last),))


def pictures(spec, values):
    """One step that saw the first of two pictures [2, *shape], and the other one after it."""
    return Demonstrations(
        spec,
        (values[:1],),
        (values[1:],),
        np.zeros((1, 1), np.float32),
        np.zeros((1, 0), np.int64),
        np.ones(1, np.float32),
        np.array([1]),
        np.array([False]),
        np.array([True]),
    )


@pytest.mark.parametrize("recorded", ["uint8", "float32"])
@pytest.mark.parametrize("wanted", ["uint8", "float32"])
def test_pictures_fit_whether_they_were_recorded_as_png_or_as_floats(tmp_path, recorded, wanted):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5)).astype(np.uint8)
    values: dict[str, Any] = {"uint8": pixels, "float32": pixels / np.float32(255)}
    write_unity_demo(tmp_path / "a.demo", pictures(seen(recorded), values[recorded]), "Expert")
    found = load_demonstrations("a.demo", seen(wanted), tmp_path)
    expected = values[wanted]
    for array, picture in (
        (found.observations[0], expected[:1]),
        (found.final_observations[0], expected[1:]),
    ):
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, picture)


def test_pictures_with_channels_last_are_written_first_and_come_back_as_the_behaviour_has_them(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3)).astype(np.uint8)
    write_unity_demo(tmp_path / "a.demo", pictures(seen("uint8", channels_last=True), pixels), "Expert")
    first = load_demonstrations("a.demo", seen("uint8"), tmp_path).observations[0]
    np.testing.assert_array_equal(first, np.moveaxis(pixels[:1], -1, 1))
    last = load_demonstrations("a.demo", seen("float32", channels_last=True), tmp_path).observations[0]
    np.testing.assert_array_equal(last, pixels[:1] / np.float32(255))


SEEN = (
    ObservationSpec("state", (3,)),
    ObservationSpec("number", (1,), goal=True),
    EYE,
    ObservationSpec("depth", (1, 6, 5)),
    ObservationSpec("things", (4, 3)),
)


@pytest.mark.lengthy
@examples(15)
@given(
    observations=st.lists(st.sampled_from(SEEN), min_size=1, max_size=3).map(tuple),
    actions=st.sampled_from([ActionSpec(2), ActionSpec(0, (3, 2), masked=True), ActionSpec(1, (4,), masked=True)]),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    seed=st.integers(0, 100),
)
def test_demonstrations_that_are_written_come_back_exactly(tmp_path_factory, observations, actions, lengths, seed):
    given_ = random_demonstrations(BehaviorSpec("Ball", observations, actions), lengths, seed)
    path = tmp_path_factory.mktemp("round") / "a.demo"
    write_unity_demo(path, given_, "Expert")
    found = load_demonstrations(str(path), given_.spec)
    assert found.spec == given_.spec
    for name in ("observations", "final_observations"):
        for ours, theirs in zip(getattr(found, name), getattr(given_, name), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    columns = ("continuous", "choices", "rewards", "lengths", "terminated", "starts_episode", "masks")
    for column in columns if actions.masked else columns[:-1]:
        np.testing.assert_array_equal(getattr(found, column), getattr(given_, column), err_msg=column)


def random_demonstrations(spec, lengths, seed):
    random = np.random.default_rng(seed)
    n, k = sum(lengths), len(lengths)
    branches, terminated = spec.actions.discrete_branches, random.random(k) < 0.5

    def observed(rows):
        arrays = [random.random((rows, *each.shape)).astype(np.float32) for each in spec.observations]
        pairs = zip(arrays, spec.observations, strict=True)
        return tuple((array * 255).astype(np.uint8) if o.dtype == "uint8" else array for array, o in pairs)

    masks = random.random((n, spec.actions.mask_size)) < 0.7
    masks[:, np.cumsum((0, *branches[:-1])) if branches else []] = True
    finals = observed(k)
    for final in finals:
        final[terminated] = 0
    return Demonstrations(
        spec,
        observed(n),
        finals,
        random.uniform(-1, 1, (n, spec.actions.continuous_size)).astype(np.float32),
        random.integers(0, branches, (n, len(branches))).astype(np.int64),
        random.normal(size=n).astype(np.float32),
        np.array(lengths),
        terminated,
        np.ones(k, np.bool_),
        masks if branches else None,
    )


def test_pieces_of_an_episode_are_written_as_one(tmp_path):
    pieces = random_demonstrations(BALL, [2, 3, 1], 0)
    pieces = replace(pieces, starts_episode=np.array([True, False, True]), terminated=np.array([False, True, False]))
    write_unity_demo(tmp_path / "a.demo", pieces, "Expert")
    found = read_unity_demo(tmp_path / "a.demo", "Ball")
    assert found.lengths.tolist() == [5, 1]
    assert found.terminated.tolist() == [True, False]
    np.testing.assert_array_equal(found.observations[0], pieces.observations[0])


def test_actions_without_bounds_cannot_be_written(tmp_path):
    spec = replace(BALL, actions=ActionSpec(1, unbounded=(0,)))
    with pytest.raises(StageError, match=r"Ball has continuous actions without bounds \(\[0\]\)"):
        write_unity_demo(tmp_path / "a.demo", random_demonstrations(spec, [2], 0), "Expert")
    assert not (tmp_path / "a.demo").exists()


def test_numbers_that_a_short_file_states_take_no_memory(tmp_path):
    huge = pair([0.5])
    huge.agent_info.observations[0].shape[:] = [10**9]
    unity_file(tmp_path / "a.demo", [huge])
    with pytest.raises(StageError, match=r"a\.demo.*pair 1: observation 'state' has 1 numbers; expected 1000000000"):
        read_unity_demo(tmp_path / "a.demo", "Ball")
    unity_file(tmp_path / "b.demo", [pair([0.5], discrete=(1,))], described=brain("Ball", 0, (2**31 - 1,)))
    with pytest.raises(StageError, match=r"b\.demo.*at most 1,048,576 actions and choices"):
        read_unity_demo(tmp_path / "b.demo", "Ball")
