from math import log

import numpy as np
import pytest

from headrace.stages.trainer.impala import Limits, ratio_statistics


def test_ratios_are_measured_as_by_hand():
    log_ratios = np.log([0.5, 1.0, 3.0, 1.5])
    found = ratio_statistics(log_ratios, Limits(rho_bar=2.0, c_bar=1.0, lambd=0.9))
    assert found["Policy/Importance Ratio"] == pytest.approx((0.5 + 1.0 + 2.0 + 1.5) / 4)
    assert found["Policy/Clipped Ratios"] == pytest.approx(1 / 4)
    assert found["Policy/Trace Coefficient"] == pytest.approx(0.9 * (0.5 + 1.0 + 1.0 + 1.0) / 4)
    k3 = (0.5 - 1 - log(0.5)) + 0.0 + (3.0 - 1 - log(3.0)) + (1.5 - 1 - log(1.5))
    assert found["Policy/Approximate KL"] == pytest.approx(k3 / 4)
    assert (found["Policy/Ratio Min"], found["Policy/Ratio Max"]) == (pytest.approx(0.5), pytest.approx(3.0))


def test_a_ratio_that_overflows_is_reported_as_infinite_and_clipped_in_the_loss():
    found = ratio_statistics(np.array([0.0, 1e4]), Limits())
    assert (found["Policy/Importance Ratio"], found["Policy/Trace Coefficient"]) == (1.0, 1.0)
    assert found["Policy/Ratio Max"] == np.inf
