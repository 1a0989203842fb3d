import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.errors import StageError
from headrace.stages.policy import Normalizer


def test_a_new_normalizer_changes_nothing_within_its_limit():
    rows = np.array([[-4.0, 0.0, 4.5]], np.float32)
    np.testing.assert_array_equal(Normalizer(3).apply(rows), rows)


def test_values_beyond_five_standard_deviations_are_clamped():
    rows = np.array([[-7.0, 5.1, np.float32(1e30)]], np.float32)
    np.testing.assert_array_equal(Normalizer(3).apply(rows), [[-5.0, 5.0, 5.0]])


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 3.0, 1e4]),
    seed=st.integers(0, 1000),
)
@examples(60)
def test_batches_of_any_size_give_the_moments_of_all_rows_and_an_imagined_first_one(sizes, offset, seed):
    random = np.random.default_rng(seed)
    batches = [random.normal(offset, 2.0, (n, 3)).astype(np.float32) for n in sizes]
    normalizer = Normalizer(3)
    for batch in batches:
        normalizer.update(batch)
    seen = np.concatenate([np.zeros((1, 3)), *[b.astype(np.float64) for b in batches]])
    assert normalizer.steps == len(seen)
    np.testing.assert_allclose(normalizer.mean, seen.mean(axis=0), rtol=1e-12, atol=1e-12)
    # The imagined first observation is 0, with a squared deviation of 1 of its own.
    np.testing.assert_allclose(normalizer.squares / len(seen), np.var(seen, axis=0) + 1 / len(seen), rtol=1e-9)


def test_the_published_tensors_are_mean_and_inverse_standard_deviation():
    normalizer = Normalizer(1)
    normalizer.update(np.array([[2.0], [4.0]], np.float32))  # with the imagined 0: mean 2, squares 1 + 8
    mean, inverse_std = normalizer.tensors()
    assert mean.tolist() == [2.0]
    assert inverse_std[0] == pytest.approx(1 / np.sqrt(3.0), rel=1e-6)
    assert normalizer.apply(np.array([[5.0]], np.float32))[0, 0] == pytest.approx(np.sqrt(3.0), rel=1e-6)


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
