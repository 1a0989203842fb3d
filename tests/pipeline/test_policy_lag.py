"""`max_policy_lag: auto`: how far actors run ahead follows from what the first updates show."""

from __future__ import annotations

import logging

import pytest
from fakes import Cast
from flow_harness import STEP_S, Scenario, Trained, run_flow

from headrace.config.pipeline import PipelineSettings
from headrace.pipeline.flow import MEASURED_UPDATES, PolicyLags

INLINE = {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}


def lags(**settings):
    return PolicyLags(PipelineSettings.model_validate(settings))


def first(made, any_age=False, corrects_age=True):
    return made.first("Walker", 2048, any_age, corrects_age)


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_a_number_is_taken_as_it_is_and_nothing_is_measured(lag, caplog):
    caplog.set_level(logging.INFO)
    made = lags(max_policy_lag=lag)
    assert first(made) == lag
    assert made.measured("Walker", (0.1,) * 9, (0.2,) * 9) is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("collecting_s", "learning_s", "lag", "said"),
    [
        (
            0.25,
            0.5,
            1,
            "collecting 2048 steps takes 0.25 s, learning from them 0.5 s, so actors keep collecting during updates.",
        ),
        (
            1.4,
            0.5,
            1,
            "collecting 2048 steps takes 1.4 s, learning from them 0.5 s, so actors keep collecting during updates.",
        ),
        (3.0, 0.5, 0, "collecting 2048 steps takes 3 s, learning from them 0.5 s, so actors wait for each policy."),
    ],
)
def test_auto_lag_is_0_if_collecting_takes_much_longer_and_otherwise_1(collecting_s, learning_s, lag, said, caplog):
    caplog.set_level(logging.INFO)
    made = lags()
    assert first(made) == 0, "while it is measured"
    decided = [made.measured("Walker", (collecting_s,), (learning_s,)) for _ in range(MEASURED_UPDATES + 2)]
    assert decided == [*[None] * (MEASURED_UPDATES - 1), lag, None, None]
    assert caplog.messages == [f"Walker: max_policy_lag is {lag} (auto): {said}"]


@pytest.mark.parametrize(("collecting_s", "learning_s", "lag"), [(0.25, 0.5, 1), (1.0, 0.25, 0)])
def test_a_single_slow_update_does_not_affect_the_policy_lag(collecting_s, learning_s, lag):
    """An actor is restarted within one, or a checkpoint is made; another imports what it needs."""
    made = lags()
    first(made)
    for each in ((30.0, learning_s), (collecting_s, 30.0), *[(collecting_s, learning_s)] * (MEASURED_UPDATES - 3)):
        assert made.measured("Walker", *((seconds,) for seconds in each)) is None
    assert made.measured("Walker", (collecting_s,), (learning_s,)) == lag


def test_actors_that_are_slow_in_a_run_s_first_second_are_measured_again():
    made = lags()
    first(made)
    assert made.measured("Walker", (0.05,) * MEASURED_UPDATES, (0.01,) * MEASURED_UPDATES) is None
    assert made.measured("Walker", (0.02,) * (MEASURED_UPDATES // 2), (0.01,) * (MEASURED_UPDATES // 2)) is None
    assert made.measured("Walker", (0.02,), (0.01,)) == 1


def test_each_behaviour_is_measured_for_itself():
    made = lags()
    for behavior in ("Hider", "Seeker"):
        made.first(behavior, 64, False, True)
    assert made.measured("Hider", (1.0,) * MEASURED_UPDATES, (2.0,) * MEASURED_UPDATES) == 1
    assert made.measured("Seeker", (4.0,) * MEASURED_UPDATES, (1.0,) * MEASURED_UPDATES) == 0


@pytest.mark.parametrize(
    ("settings", "trainer", "lag", "why"),
    [
        ({"hosts": INLINE}, {}, 0, "actors and learner take turns in the main process"),
        ({}, {"any_age": True}, 1, "its trainer learns from steps of any age"),
        ({}, {"corrects_age": False}, 0, "its trainer does not correct for steps from older policies"),
    ],
)
def test_if_there_is_nothing_to_measure_the_log_states_the_reason(settings, trainer, lag, why, caplog):
    caplog.set_level(logging.INFO)
    made = lags(**settings)
    assert first(made, **trainer) == lag
    assert made.measured("Walker", (0.1,) * 9, (0.2,) * 9) is None
    assert caplog.messages == [f"Walker: max_policy_lag is {lag} (auto): {why}."]


def test_a_deterministic_run_measures_nothing(caplog):
    caplog.set_level(logging.INFO)
    made = lags(deterministic=True)
    assert first(made) == 0
    assert made.measured("Walker", (0.1,) * 9, (0.2,) * 9) is None
    assert not caplog.records


@pytest.mark.lengthy
@pytest.mark.parametrize(("learning_s", "stepping_s", "lag"), [(1.0, STEP_S, 1), (0.0, 0.1, 0)])
def test_the_window_is_opened_for_actors_that_may_run_ahead(learning_s, stepping_s, lag, caplog):
    caplog.set_level(logging.INFO)
    walker = Trained("Walker", rows_per_update=8, horizon=4, updates=20, uses_all=False)
    times = {"learning_s": learning_s, "stepping_s": stepping_s}
    flow = run_flow(Scenario((walker,), (Cast("Walker", agents=1),), max_policy_lag="auto", **times))
    assert flow.ledger.resized == {"Walker": lag}
    assert flow.ledger.peak["Walker"] == 8 * (lag + 1)
    assert sum(f"max_policy_lag is {lag} (auto)" in message for message in caplog.messages) == 1
