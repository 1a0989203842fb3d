"""Who may be started again, and who has fallen silent."""

from __future__ import annotations

import pytest

from config import EnvSettings
from pipeline.main.supervision import STARTING_FACTOR, Supervisor


def supervisor(**settings):
    return Supervisor(EnvSettings(**{"timeout_wait": 10, "restarts_rate_limit_n": -1} | settings))


def test_a_host_that_has_said_nothing_for_timeout_wait_is_silent():
    watch = supervisor()
    watch.alive("actor-0", 100.0)
    assert watch.silent(110.0) == []
    assert watch.silent(110.1) == ["actor-0"]


def test_a_starting_host_has_more_time():
    watch = supervisor()
    watch.started("actor-0", 0.0)
    assert watch.silent(10.0 * STARTING_FACTOR) == []
    assert watch.silent(10.0 * STARTING_FACTOR + 0.1) == ["actor-0"]


def test_its_first_word_ends_the_time_to_start():
    watch = supervisor()
    watch.started("actor-0", 0.0)
    watch.alive("actor-0", 1.0)
    assert watch.silent(11.5) == ["actor-0"]


def test_a_silent_host_is_named_once_until_it_is_heard_or_started_again():
    watch = supervisor()
    watch.alive("actor-0", 0.0)
    watch.alive("actor-1", 15.0)
    assert watch.silent(20.0) == ["actor-0"]
    assert watch.silent(21.0) == []
    watch.started("actor-0", 21.0)
    assert watch.silent(24.0) == []
    assert sorted(watch.silent(100.0)) == ["actor-0", "actor-1"]


def test_restarts_are_limited_for_each_host_alone():
    watch = supervisor(max_lifetime_restarts=1)
    assert watch.refusal("actor-0", 0.0) is None
    assert watch.refusal("actor-1", 0.0) is None
    assert watch.refusal("actor-0", 1.0) == "it was restarted once (env_settings.max_lifetime_restarts is 1)"


def test_restarts_are_limited_within_a_period():
    watch = supervisor(restarts_rate_limit_n=2, restarts_rate_limit_period_s=60)
    assert [watch.refusal("actor-0", now) for now in (0.0, 10.0)] == [None, None]
    assert "it was restarted twice within 60 s" in watch.refusal("actor-0", 20.0)
    assert watch.refusal("actor-0", 61.0) is None


@pytest.mark.parametrize("times", [11, 12])
def test_by_default_a_host_is_restarted_ten_times_at_most(times):
    watch = supervisor()
    refusals = [watch.refusal("actor-0", 1000.0 * i) for i in range(times)]
    assert [refusal is None for refusal in refusals] == [True] * 10 + [False] * (times - 10)
