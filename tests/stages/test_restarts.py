"""How often something that crashes may be started again."""

from __future__ import annotations

import pytest

from headrace.stages.restarts import RestartBudget


def test_the_lifetime_limit_refuses_in_words():
    budget = RestartBudget(lifetime=2, rate_n=-1, period_s=60.0)
    for now in (0.0, 1000.0):
        assert budget.refusal(now) is None
        budget.spend(now)
    assert budget.refusal(5000.0) == "it was restarted twice (env_settings.max_lifetime_restarts is 2)"


def test_the_rate_limit_refuses_until_the_period_has_passed():
    budget = RestartBudget(lifetime=-1, rate_n=1, period_s=60.0)
    budget.spend(100.0)
    assert budget.refusal(160.0) == "it was restarted once within 60 s (env_settings.restarts_rate_limit_n is 1)"
    assert budget.refusal(160.5) is None


@pytest.mark.parametrize(("lifetime", "rate_n"), [(0, -1), (-1, 0)])
def test_a_limit_of_0_forbids_restarts(lifetime, rate_n):
    assert RestartBudget(lifetime, rate_n, 60.0).refusal(0.0) is not None
