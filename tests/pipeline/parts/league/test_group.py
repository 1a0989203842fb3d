"""A behaviour of the environments under the name of its learner."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
from fakes import Cast, CountingGroup, answer_to

from headrace.pipeline.parts.league import LearnersGroup
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.protocol import StatisticValues

CASTS = [Cast("Ball?team=0"), Cast("Ball?team=1"), Cast("Walker")]
NAMES = ["Ball.main?team=0", "Ball.main?team=1", "Walker"]


class Measuring(CountingGroup):
    """Environments with statistics of behaviours; they refuse actions for behaviour ids that they do not have."""

    def check(self, actions):
        assert {*actions} == {cast.behavior_id for cast in self._casts}
        super().check(actions)

    def _after(self, result, delay_s):
        measured = {"Ball": {"Hits": StatisticValues((3.0,))}, "Walker": {"Hits": StatisticValues((1.0,))}}
        return super()._after(replace(result, behavior_statistics=measured), delay_s)


def wrapped(**options):
    return LearnersGroup(Measuring(CASTS, 2, **options), "Ball", "Ball.main")


def answers(result):
    found = {}
    for behavior_id, steps in result.steps.items():
        actions = answer_to(steps.observations[0][steps.ended :])[:, None]
        found[behavior_id] = ActionBatch(np.empty((len(actions), 0), np.float32), actions)
    return found


def check_result(group, result):
    assert {*result.steps} == {*NAMES}
    assert [*result.behavior_statistics] == ["Ball.main", "Walker"]
    assert [*group.behavior_specs] == NAMES
    assert all(spec.behavior_id == name for name, spec in group.behavior_specs.items())


def test_specs_steps_and_statistics_have_the_learners_name_and_actions_come_back():
    group = wrapped()
    assert [*group.behavior_specs] == NAMES
    result = group.reset(1)
    for _ in range(5):
        check_result(group, result)
        result = group.step(answers(result))


def test_behaviours_that_are_known_late_are_renamed_too():
    group = wrapped(late=True)
    assert not group.behavior_specs
    check_result(group, group.reset(1))


@pytest.mark.virtual_time
async def test_environments_that_are_awaited_stay_so():
    group = wrapped(delay_s=lambda: 1.0)
    result = group.reset(1)
    assert inspect.isawaitable(result)
    result = await result
    check_result(group, result)
    check_result(group, await group.step(answers(result)))
