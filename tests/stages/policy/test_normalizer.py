import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.errors import StageError
from headrace.stages.policy.observations import Normalizer


def test_a_new_normalizer_changes_nothing_within_its_limit():
    rows = np.array([[-4.0, 0.0, 4.5]], np.float32)
    np.testing.assert_array_equal(Normalizer(3).apply(rows), rows)


def test_values_beyond_five_standard_deviations_are_clamped():
    rows = np.array([[-7.0, 5.1, np.float32(1e30)]], np.float32)
    np.testing.assert_array_equal(Normalizer(3).apply(rows), [[-5.0, 5.0, 5.0]])


@pytest.mark.lengthy
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 3.0, 1e4]),
    seed=st.integers(0, 1000),
)
@examples(25)
def test_batches_of_any_size_give_the_moments_of_all_rows(sizes, offset, seed):
    random = np.random.default_rng(seed)
    batches = [random.normal(offset, 2.0, (n, 3)).astype(np.float32) for n in sizes]
    normalizer = Normalizer(3)
    for batch in batches:
        normalizer.update(batch)
    seen = np.concatenate([np.zeros((0, 3)), *[b.astype(np.float64) for b in batches]])
    assert normalizer.steps == len(seen)
    if len(seen):
        np.testing.assert_allclose(normalizer.mean, seen.mean(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(normalizer.squares / len(seen), np.var(seen, axis=0), rtol=1e-9, atol=1e-20)


FAR = [
    (0.0, 1.0, "float32"),
    (1000.0, 1.0, "float32"),
    (20_000.0, 1.0, "float32"),
    (-20_000.0, 0.01, "float32"),
    (20_000.0, 1e-6, "float64"),
    (1.7e9, 60.0, "float64"),
    (1.7e9, 0.001, "float64"),
    (0.0, 1e-6, "float32"),
    (1e12, 1.0, "float64"),
]


@pytest.mark.parametrize("batches", [1, 40])
@pytest.mark.parametrize(("offset", "scale", "dtype"), FAR)
def test_the_distance_of_two_observations_depends_on_their_deviation_and_not_on_their_mean(
    offset, scale, dtype, batches
):
    random, normalizer = np.random.default_rng(0), Normalizer(1)
    for _ in range(batches):
        of_each = random.permutation(np.repeat([0, 1], 256))[:, None]
        normalizer.update((offset + scale * of_each).astype(dtype))
    low, high = normalizer.apply(np.array([[offset], [offset + scale]], dtype)).ravel()
    assert low.dtype == np.float32
    assert high - low == pytest.approx(2.0, abs=2e-3)
    assert abs(low + high) < (0.5 if dtype == "float32" else 2e-3)  # float32 rounds the mean, too


@pytest.mark.parametrize("value", [0.1, 20_000.3, 1.7e9, -1e-30])
def test_a_constant_observation_is_centred_but_not_scaled(value):
    normalizer = Normalizer(2)
    for n in (3, 1, 64, 1000):
        normalizer.update(np.stack([np.full(n, value), np.random.default_rng(n).normal(size=n)], axis=1))
    assert normalizer.apply(np.array([[value, 0.0], [value + 0.5, 0.0]]))[:, 0].tolist() == [0.0, pytest.approx(0.5)]


def test_rounding_errors_of_float64_do_not_count_as_variance():
    normalizer, random = Normalizer(2), np.random.default_rng(0)
    angle = random.uniform(-3, 3, 5000)
    normalizer.update(np.stack([np.sin(angle) ** 2 + np.cos(angle) ** 2, (0.1 + angle) - angle - 0.1], axis=1))
    assert normalizer.squares.all(), "they do vary"
    assert normalizer.tensors()[1].tolist() == [1.0, 1.0]


def test_the_published_tensors_are_mean_and_inverse_standard_deviation():
    normalizer = Normalizer(1)
    normalizer.update(np.array([[2.0], [4.0]], np.float32))
    normalizer.update(np.array([[6.0], [8.0]], np.float32))  # mean 5, squares 9 + 1 + 1 + 9
    mean, inverse_std = normalizer.tensors()
    assert mean.tolist() == [5.0] and normalizer.mean_rest.tolist() == [0.0]
    assert inverse_std[0] == pytest.approx(1 / np.sqrt(5.0), rel=1e-6)
    assert normalizer.apply(np.array([[10.0]], np.float32))[0, 0] == pytest.approx(np.sqrt(5.0), rel=1e-6)


def test_the_mean_and_its_rest_have_48_bits():
    normalizer = Normalizer(1)
    normalizer.update(np.array([[1.7e9], [1.7e9 + 0.5]]))
    mean = float(normalizer.tensors()[0][0]) + float(normalizer.mean_rest[0])
    assert abs(mean - (1.7e9 + 0.25)) < 1e-5


def test_a_state_of_ml_agents_counts_its_imaginary_observation_in_later_updates():
    normalizer = Normalizer(1)
    normalizer.load_state_dict({"steps": 1, "mean": np.zeros(1), "squares": np.ones(1)})
    assert normalizer.apply(np.array([[3.0]], np.float32)).tolist() == [[3.0]]
    normalizer.update(np.array([[2.0], [4.0]], np.float32))  # with the imagined 0: mean 2, squares 1 + 8
    assert normalizer.tensors()[0].tolist() == [2.0]
    assert normalizer.tensors()[1][0] == pytest.approx(1 / np.sqrt(3.0), rel=1e-6)


def test_a_loaded_state_continues_as_the_saved_one():
    random = np.random.default_rng(1)
    first, second = random.normal(size=(2, 10, 2)).astype(np.float32)
    original, resumed = Normalizer(2), Normalizer(2)
    original.update(first)
    resumed.load_state_dict(original.state_dict())
    original.update(second)
    resumed.update(second)
    assert resumed.steps == original.steps
    np.testing.assert_array_equal(resumed.mean, original.mean)
    np.testing.assert_array_equal(resumed.squares, original.squares)


def test_a_state_of_another_size_is_refused():
    with pytest.raises(StageError, match=r"normalizer\.mean: expected shape \(3,\), got \(2,\)"):
        Normalizer(3).load_state_dict(Normalizer(2).state_dict())
