from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """The same inputs in every run, and torch's randomness as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
