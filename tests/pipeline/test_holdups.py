"""What holds a run up is named, and nothing else: whole runs in virtual time, of which it is known what takes how long."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import patch

import pytest
from fakes import Cast
from flow_harness import Flow, Scenario, Trained, run_flow

from headrace.pipeline.reporting.time_shares import Bottleneck

pytestmark = pytest.mark.lengthy

FOREVER = 10**6
WALKER = (Trained("Walker", 20, 5, FOREVER, uses_all=False),)
"""Two agents: ten ticks for an update."""
WALKERS = (Cast("Walker", agents=2),)
MANY = [f"B{number}" for number in range(8)]


def seen_in(seconds: float = 25.0, **scenario) -> Bottleneck | None:
    """What is said of a run after so many virtual seconds."""
    seen, real = [], time.perf_counter

    def now() -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return real()

    async def look(flow: Flow) -> None:
        await asyncio.sleep(seconds)
        seen.append(flow.coordinator.reporter.snapshot().bottleneck)
        flow.stop.set()

    plain = {"trained": WALKER, "casts": WALKERS, "max_policy_lag": 0, "apart": True, **scenario}
    with patch("time.perf_counter", now):
        run_flow(Scenario(**plain), look)
    return seen[0]


@pytest.mark.parametrize(
    ("stepping_s", "a_step"), [(0.2, "0.2 s"), (1 / 30, "33 ms")], ids=["slow", "a build at 30 Hz"]
)
def test_slow_environments_are_named_with_the_time_of_a_step(stepping_s, a_step):
    found = seen_in(stepping_s=stepping_s, learning_s=stepping_s, seconds=100 * stepping_s + 10)
    assert found is not None
    assert (found.host, found.stage) == ("actors", "environment")
    assert found.busy == pytest.approx(10 / 11, abs=0.02)
    assert f"of the actors' time, {a_step} a step; the learner is 9 % busy" in found.text


def test_a_slow_learner_is_named_with_the_times_of_updates_and_of_collecting():
    found = seen_in(stepping_s=0.1, learning_s=4.0)
    assert found is not None
    assert (found.host, found.stage, found.behavior) == ("learner-Walker", "trainer", "Walker")
    assert found.text.startswith(
        "Learner: 80 % busy; actors wait 80 % of the time for it. An update takes 4 s, collecting 1 s. More `learners.threads`"
    )


def test_a_slow_stage_in_main_is_named():
    found = seen_in(stepping_s=0.1, learning_s=0.1, slow_stage_s=2.0)
    assert found is not None
    assert (found.host, found.stage) == ("main", "slow")
    assert found.text.startswith("Stage slow in main: ")


def test_of_eight_behaviours_the_one_whose_learner_is_slow_is_named():
    trained = tuple(Trained(name, 20, 5, FOREVER, uses_all=False, learning_s=4.0 * (name == "B3")) for name in MANY)
    found = seen_in(
        trained=trained, casts=tuple(Cast(name, agents=2) for name in MANY), stepping_s=0.1, learning_s=0.05
    )
    assert found is not None
    assert (found.host, found.stage, found.behavior) == ("learner-B3", "trainer", "B3")
    assert found.wait > 0.7


@pytest.mark.parametrize("seconds", [1.5, pytest.param(5.0, marks=pytest.mark.slow), 25.0])
def test_in_a_balance_nothing_is_named(seconds):
    found = seen_in(seconds, stepping_s=0.1, learning_s=1.0)
    assert found is None or not found.host


@pytest.mark.parametrize("seconds", [1.5, pytest.param(3.0, marks=pytest.mark.slow), 5.5])
def test_before_the_first_update_nothing_is_reported(seconds):
    assert seen_in(seconds, stepping_s=0.6, learning_s=4.0) is None
