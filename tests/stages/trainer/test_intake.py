import numpy as np
import pytest
import torch
from trainer_samples import experience

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import Normalizer
from headrace.stages.trainer.intake import EXPORTED_STEPS, ObservationPreprocessor

SPEC = BehaviorSpec(
    "Test",
    (ObservationSpec("v", (2,)), ObservationSpec("i", (1, 3, 3)), ObservationSpec("w", (), "int64")),
    ActionSpec(1),
)


def batch(lengths=(3, 2), terminated=(True, False)):
    made = experience(SPEC, list(lengths))
    return made.replace(terminated=np.array(terminated), truncated=np.zeros(len(lengths), np.bool_))


def test_vectors_stand_side_by_side_and_images_stay_what_they_are():
    given = batch()
    rows, finals = ObservationPreprocessor(SPEC, False).encode(given, 0)
    np.testing.assert_array_equal(rows.vectors[:, :2], given.rows["obs_0"])
    np.testing.assert_array_equal(rows.vectors[:, 2], given.rows["obs_2"])
    assert rows.vectors.dtype == np.float32
    assert rows.others[0] is given.rows["obs_1"]
    np.testing.assert_array_equal(finals.vectors[1, :2], given.trajectories["next_obs_0"][1])
    assert finals.others[0] is given.trajectories["next_obs_1"]


def test_the_normalizer_sees_the_rows_and_nothing_that_follows_them():
    intake, reference = ObservationPreprocessor(SPEC, True), Normalizer(3)
    rows, _ = intake.encode(batch(), 0)
    reference.update(rows.vectors)
    np.testing.assert_array_equal(intake.normalized(rows.vectors), reference.apply(rows.vectors))


@pytest.mark.parametrize("normalizes", [False, True])
def test_network_inputs_are_normalised_and_images_stay_what_they_are(normalizes):
    intake = ObservationPreprocessor(SPEC, normalizes)
    rows, _ = intake.encode(batch(), 0)
    inputs = intake.inputs(rows)
    np.testing.assert_array_equal(inputs.vectors, intake.normalized(rows.vectors))
    np.testing.assert_array_equal(inputs.others[0], rows.others[0])


def test_observations_after_termination_are_zeros():
    given = batch()
    given.trajectories["next_obs_0"][0] = np.nan
    given.trajectories["next_obs_1"][0, 0, 0] = np.inf
    image = given.trajectories["next_obs_1"].copy()
    _, finals = ObservationPreprocessor(SPEC, False).encode(given, 0)
    assert finals.vectors[0].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(finals.others[0][0], given.rows["obs_1"][2])
    np.testing.assert_array_equal(finals.others[0][1], image[1])
    np.testing.assert_array_equal(given.trajectories["next_obs_1"], image)  # the batch belongs to others


def test_observations_after_termination_are_kept_for_signals_that_continue():
    given = batch()
    _, finals = ObservationPreprocessor(SPEC, False, beyond_termination=True).encode(given, 0)
    np.testing.assert_array_equal(finals.vectors[0, :2], given.trajectories["next_obs_0"][0])


@pytest.mark.parametrize("column", ["next_obs_0", "next_obs_1"])
def test_the_last_observation_replaces_a_final_one_that_is_not_finite(column):
    given = batch()
    given.trajectories[column][0].reshape(-1)[0] = np.nan
    _, finals = ObservationPreprocessor(SPEC, False, beyond_termination=True).encode(given, 0)
    np.testing.assert_array_equal(finals.vectors[0, :2], given.rows["obs_0"][2])
    np.testing.assert_array_equal(finals.others[0][0], given.rows["obs_1"][2])
    np.testing.assert_array_equal(finals.vectors[1, :2], given.trajectories["next_obs_0"][1])


@pytest.mark.parametrize(
    ("column", "row", "message"),
    [
        ("obs_0", 1, "agent 100, episode 0: obs is not finite at step 1 of its trajectory of 3 steps"),
        ("obs_1", 3, "agent 101, episode 0: obs_1 is not finite at step 0 of its trajectory of 2 steps"),
        ("rewards", 4, "agent 101, episode 0: rewards is not finite at step 1"),
        ("continuous_actions", 0, "agent 100, episode 0: continuous_actions is not finite at step 0"),
        ("memories", 2, "agent 100, episode 0: memories is not finite at step 2"),
        ("action_heads", 3, "agent 101, episode 0: action_heads is not finite at step 0"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_numbers_that_are_not_finite_are_refused_before_anything_is_kept(column, row, message, value):
    intake, given = ObservationPreprocessor(SPEC, True), batch()
    given = given.replace(memories=np.zeros((5, 2), np.float32), action_heads=np.zeros((5, 2), np.float32))
    given.rows[column][row] = value
    with pytest.raises(NotFiniteError, match=message):
        intake.encode(given, 7)
    assert intake.normalizer.steps == 0


@pytest.mark.parametrize("column", ["next_obs_0", "next_obs_1"])
@pytest.mark.parametrize("beyond", [False, True])
def test_the_observation_after_a_cut_trajectory_must_be_finite(column, beyond):
    given = batch()
    given.trajectories[column][1] = np.inf
    with pytest.raises(NotFiniteError, match="agent 101, episode 0: next_obs .* at the end of its trajectory of 2"):
        ObservationPreprocessor(SPEC, False, beyond).encode(given, 0)


def test_a_restored_normalizer_is_identical_and_another_normalize_setting_is_refused():
    one, other = ObservationPreprocessor(SPEC, True), ObservationPreprocessor(SPEC, True)
    rows, _ = one.encode(batch(), 0)
    other.load_normalizer(one.normalizer.state_dict())
    np.testing.assert_array_equal(one.normalized(rows.vectors), other.normalized(rows.vectors))
    with pytest.raises(StageError, match="normalize is false, but the saved state was made with true"):
        ObservationPreprocessor(SPEC, False).load_normalizer(one.normalizer.state_dict())
    with pytest.raises(StageError, match="normalize is true, but the saved state was made with false"):
        one.load_normalizer(None)


def test_the_normalizer_of_an_exported_policy_gives_the_same_and_moves_on_slowly():
    tensors = {
        "normalizer.mean": np.array([1.0, -2.0, 0.5], np.float32),
        "normalizer.inverse_std": np.array([0.5, 2.0, 1.0], np.float32),
    }
    intake = ObservationPreprocessor(SPEC, True)
    intake.load_exported_normalizer(tensors)
    mean, inverse_std = intake.normalizer.tensors()
    np.testing.assert_allclose(mean, tensors["normalizer.mean"], rtol=1e-6)
    np.testing.assert_allclose(inverse_std, tensors["normalizer.inverse_std"], rtol=1e-6)
    intake.normalizer.update(np.full((EXPORTED_STEPS, 3), 5.0, np.float32))
    np.testing.assert_allclose(intake.normalizer.mean, [3.0, 1.5, 2.75], rtol=1e-6)


def test_an_exported_policy_has_to_normalize_as_this_one_does():
    with pytest.raises(StageError, match="normalize is true, but the policy was made with false; set it to false"):
        ObservationPreprocessor(SPEC, True).load_exported_normalizer({})
    with pytest.raises(StageError, match="normalize is false, but the policy was made with true; set it to true"):
        ObservationPreprocessor(SPEC, False).load_exported_normalizer(
            {"normalizer.mean": np.zeros(3), "normalizer.inverse_std": np.ones(3)}
        )
    ObservationPreprocessor(SPEC, False).load_exported_normalizer({})


CLOCK = BehaviorSpec("Test", (ObservationSpec("time", (1,), "float64"), ObservationSpec("v", (2,))), ActionSpec(1))


def clock_batch(times=(0.0, 60.0, 0.0, 60.0)):
    made = experience(CLOCK, [2, 2])
    made.trajectories["next_obs_0"][:] = 1.7e9
    return made.replace(obs_0=1.7e9 + np.array(times)[:, None])


def test_float64_is_normalised_before_it_is_rounded():
    intake = ObservationPreprocessor(CLOCK, True)
    rows, finals = intake.encode(clock_batch(), 0)
    assert rows.vectors.dtype == finals.vectors.dtype == np.float64
    normalized = intake.normalized(rows.vectors)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized[:, 0], [-1, 1, -1, 1], rtol=1e-6)


def test_float64_is_rounded_if_nothing_is_normalised():
    intake = ObservationPreprocessor(CLOCK, False)
    rows, _ = intake.encode(clock_batch(), 0)
    assert intake.normalized(rows.vectors).dtype == np.float32
    inputs = Inputs.from_encoded(rows)
    assert inputs.vectors.dtype == torch.float32
    assert (inputs.vectors.double() + inputs.vectors_rest)[:, 0].tolist() == (1.7e9 + np.array([0, 60, 0, 60])).tolist()


def test_float64_numbers_beyond_float32_are_refused():
    with pytest.raises(NotFiniteError, match="agent 100, episode 0: obs is not finite at step 1 of its trajectory"):
        ObservationPreprocessor(CLOCK, True).encode(clock_batch((0.0, 1e300, 0.0, 0.0)), 7)


def test_an_exported_policy_that_sees_float64_has_the_whole_mean_and_one_without_its_rest_is_taken():
    intake, again, older = (ObservationPreprocessor(CLOCK, True) for _ in range(3))
    rows, _ = intake.encode(clock_batch(), 0)
    tensors = dict(
        zip(("normalizer.mean", "normalizer.inverse_std"), intake.normalizer.tensors(), strict=True),
        **{"normalizer.mean_rest": intake.normalizer.mean_rest},
    )
    again.load_exported_normalizer(tensors)
    np.testing.assert_allclose(again.normalized(rows.vectors), intake.normalized(rows.vectors), rtol=1e-4)
    del tensors["normalizer.mean_rest"]
    older.load_exported_normalizer(tensors)
    assert older.normalizer.mean[0] == np.float32(1.7e9 + 30)
