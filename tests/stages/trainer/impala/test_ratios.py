from math import log

import numpy as np
import pytest

from headrace.stages.trainer.impala import Limits, ratios_of
from headrace.stages.trainer.protocol import SINGLE_TRAINER


def test_ratios_are_measured_as_by_hand():
    log_ratios = np.log([0.5, 1.0, 3.0, 1.5])
    found = ratios_of(log_ratios, Limits(rho_bar=2.0, c_bar=1.0, lambd=0.9), list, SINGLE_TRAINER)
    assert found.rho == pytest.approx((0.5 + 1.0 + 2.0 + 1.5) / 4)
    assert found.clipped == pytest.approx(1 / 4)
    assert found.trace == pytest.approx(0.9 * (0.5 + 1.0 + 1.0 + 1.0) / 4)
    k3 = (0.5 - 1 - log(0.5)) + 0.0 + (3.0 - 1 - log(3.0)) + (1.5 - 1 - log(1.5))
    assert found.approximate_kl == pytest.approx(k3 / 4)
    assert (found.least, found.greatest) == (pytest.approx(0.5), pytest.approx(3.0))


def test_a_ratio_that_overflows_is_reported_as_infinite_and_clipped_in_the_loss():
    found = ratios_of(np.array([0.0, 1e4]), Limits(), list, SINGLE_TRAINER)
    assert (found.rho, found.trace) == (1.0, 1.0)
    assert found.greatest == np.inf
