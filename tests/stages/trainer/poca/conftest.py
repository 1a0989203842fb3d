"""Small POCA trainers."""

import pytest
from group_samples import SPEC
from opened_trainers import opened_trainer_of


@pytest.fixture
def make_trainer():
    def make(signals=None, spec=SPEC, **hyperparameters):
        return opened_trainer_of(
            "poca",
            spec,
            hyperparameters={"batch_size": 4, "buffer_size": 8, **hyperparameters},
            reward_signals=signals or {"extrinsic": {"gamma": 0.5, "strength": 1.0}},
        )

    return make
