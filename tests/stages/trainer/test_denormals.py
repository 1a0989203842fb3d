"""While a trainer learns numbers below the normal range count as 0, and afterwards as before."""

import numpy as np
import pytest
import torch

from headrace.stages.trainer.adam import flushed_denormals

TINY = np.array([1e-40], np.float32)


def halved():
    """Half of a denormal number, by NumPy and by torch."""
    return [float((TINY * np.float32(0.5))[0]), float(torch.from_numpy(TINY) * 0.5)]


@pytest.fixture(autouse=True)
def as_before():
    yield
    torch.set_flush_denormal(False)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor has no such mode")
@pytest.mark.parametrize("before", [False, True])
def test_denormals_are_flushed_within_the_block_and_the_mode_is_restored_afterwards(before):
    torch.set_flush_denormal(before)
    outside = halved()
    assert (outside == [0.0, 0.0]) is before
    with flushed_denormals():
        assert halved() == [0.0, 0.0]
    assert halved() == outside


def test_a_failure_within_ends_it_too():
    @flushed_denormals()
    def failing():
        raise ValueError("as asked")

    for _ in range(2):  # a decorated function may be called again
        with pytest.raises(ValueError, match="as asked"):
            failing()
    assert 0.0 not in halved()
