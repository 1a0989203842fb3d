"""Who may be started again, and who has fallen silent."""

from __future__ import annotations

import pytest

from headrace.config import EnvSettings
from headrace.config.pipeline import START_S, STARTING_FACTOR, SupervisionSettings
from headrace.pipeline.main.supervision import Silence, Supervisor

LIMITS = {
    "actors": {"warn_s": 4.0},
    "learners": {"warn_s": 20.0, "end_s": 60.0},
    "main": {"warn_s": 30.0, "end_s": 90.0},
}


def supervisor(**settings):
    limits = SupervisionSettings.model_validate(LIMITS)
    return Supervisor(EnvSettings(**{"timeout_wait": 10, "restarts_rate_limit_n": -1} | settings), limits)


def watched(role="actors", host="actor-0"):
    """A supervisor of one host, which has spoken at second 0."""
    watch = supervisor()
    watch.started(host, role, 0.0)
    watch.alive(host, 0.0)
    return watch


def looks(watch, *times):
    """Look at these times; the (time, host, whether it ends, key) of what was found."""
    return [(now, found.host, found.ends, found.key) for now in times for found in watch.silent(now)]


def every_second(since, until):
    return [float(second) for second in range(since, until + 1)]


def test_an_actor_that_says_nothing_is_warned_of_and_ended_after_timeout_wait():
    assert looks(watched(), *every_second(1, 30)) == [
        (5.0, "actor-0", False, "pipeline.supervision.actors.warn_s"),
        (11.0, "actor-0", True, "env_settings.timeout_wait"),
    ]


def test_a_learner_has_its_own_limits():
    assert looks(watched("learners", "learner-Ball"), *every_second(1, 100)) == [
        (21.0, "learner-Ball", False, "pipeline.supervision.learners.warn_s"),
        (61.0, "learner-Ball", True, "pipeline.supervision.learners.end_s"),
    ]


@pytest.mark.parametrize("role", ["learners", "main"])
def test_an_update_of_30_seconds_gives_no_warning_and_is_not_ended_by_default(role):
    watch = Supervisor(EnvSettings(), SupervisionSettings())
    watch.started("one", role, 0.0)
    watch.alive("one", 0.0)
    assert looks(watch, *every_second(1, 31)) == []


@pytest.mark.parametrize(("timeout_wait", "end_s"), [(10, START_S), (60, START_S), (100, 100.0 * STARTING_FACTOR)])
def test_timeout_wait_does_not_limit_the_start_which_has_its_own_generous_limit(timeout_wait, end_s):
    watch = supervisor(timeout_wait=timeout_wait)
    watch.started("actor-0", "actors", 0.0)
    assert looks(watch, *every_second(1, 600)) == [
        (4.0 * STARTING_FACTOR + 1, "actor-0", False, "pipeline.supervision.actors.warn_s"),
        (end_s + 1, "actor-0", True, "pipeline.supervision.actors.end_s"),
    ]


@pytest.mark.parametrize(("role", "factor"), [("actors", STARTING_FACTOR), ("learners", STARTING_FACTOR), ("main", 1)])
def test_a_starting_host_has_several_times_the_limits_that_were_set_until_its_first_word(role, factor):
    limits = SupervisionSettings.model_validate({role: {"warn_s": 2.0, "end_s": 5.0}})
    watch = Supervisor(EnvSettings(timeout_wait=10), limits)
    watch.started("one", role, 0.0)
    assert [now for now, *_ in looks(watch, *every_second(1, 100))] == [2.0 * factor + 1, 5.0 * factor + 1]


@pytest.mark.parametrize("at", [0.0, 100.0])
def test_a_host_s_preparation_is_limited_by_the_start_timeout_and_not_by_the_game_s(at):
    watch = watched()
    for now in every_second(1, int(at)):
        watch.alive("actor-0", now)
    watch.preparing("actor-0", at, begins=True)
    found = [silence for now in every_second(int(at) + 1, int(at + START_S) + 1) for silence in watch.silent(now)]
    assert found == [
        Silence("actor-0", 21.0, False, "pipeline.supervision.actors.warn_s", starting=True),
        Silence("actor-0", START_S + 1, True, "pipeline.supervision.actors.end_s", starting=True),
    ]


def test_the_game_s_time_begins_when_the_host_has_prepared_itself():
    watch = watched()
    watch.preparing("actor-0", 1.0, begins=True)
    watch.preparing("actor-0", 50.0, begins=False)
    assert [now for now, *_ in looks(watch, *every_second(51, 70))] == [55.0, 61.0]


def test_a_sign_of_life_resets_the_limit_and_a_new_warning_follows():
    watch = watched()
    assert [ends for _, _, ends, _ in looks(watch, *every_second(1, 8))] == [False]
    watch.alive("actor-0", 8.5)
    assert [now for now, *_ in looks(watch, *every_second(9, 14))] == [13.0]


def test_a_stage_that_awaits_forever_counts_as_silent_although_its_host_reports():
    watch = watched()
    found = []
    for now in every_second(1, 20):
        watch.alive("actor-0", now, max(0.0, now - 2.0))  # nothing has come of it since second 2
        found += watch.silent(now)
    assert found == [
        Silence("actor-0", 5.0, False, "pipeline.supervision.actors.warn_s"),
        Silence("actor-0", 11.0, True, "env_settings.timeout_wait"),
    ]


def test_silence_is_not_counted_while_main_is_suspended():
    watch = watched()
    assert looks(watch, 1.0, 2.0, 1000.0, 1001.0, 1002.0) == []
    assert [now for now, *_ in looks(watch, 1003.0, 1004.0)] == [1003.0], "what went before the pause counts"
    watch = watched()
    looks(watch, 1.0, 2.0, 1000.0)
    watch.alive("actor-0", 1001.0, 999.0)  # the clock of its stage went on
    assert looks(watch, 1001.0) == []


def test_a_host_that_has_ended_is_silent_by_right():
    watch = watched()
    watch.ended("actor-0")
    assert looks(watch, *every_second(1, 30)) == []
    watch.started("actor-0", "actors", 31.0)
    assert looks(watch, *every_second(31, 40)) == []


def test_restarts_are_limited_per_host():
    watch = supervisor(max_lifetime_restarts=1)
    assert watch.refusal("actor-0", 0.0) is None
    assert watch.refusal("actor-1", 0.0) is None
    assert watch.refusal("actor-0", 1.0) == "it was restarted once (env_settings.max_lifetime_restarts is 1)"


def test_restarts_are_limited_within_a_period():
    watch = supervisor(restarts_rate_limit_n=2, restarts_rate_limit_period_s=60)
    assert [watch.refusal("actor-0", now) for now in (0.0, 10.0)] == [None, None]
    assert "it was restarted twice within 60 s" in watch.refusal("actor-0", 20.0)
    assert watch.refusal("actor-0", 61.0) is None
