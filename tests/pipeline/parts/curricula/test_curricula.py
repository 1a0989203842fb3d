"""Lessons: when they end, what the environments get then, and how a run that is resumed goes on with them."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from headrace.config import EnvironmentParameter, RunConfig
from headrace.pipeline.parts.curricula import Curricula
from headrace.stages.environments.parameters import final_parameters
from headrace.stages.trainer.report import TrainerReport

PARAMETERS = TypeAdapter(dict[str, EnvironmentParameter])
UNIFORM = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 2.0, "max_value": 4.0, "seed": -1}}


def parameters(**plain):
    return PARAMETERS.validate_python(plain)


def curriculum(*criteria, names="abcdefgh"):
    """A curriculum whose lessons have the values 0, 1, …; each of `criteria` ends one of them."""
    ends = [{"behavior": "Walker", "signal_smoothing": False, **each} for each in criteria]
    lessons = [{"name": names[i], "value": i, "completion_criteria": end} for i, end in enumerate(ends)]
    return {"curriculum": [*lessons, {"name": names[len(ends)], "value": len(ends)}]}


def report(*returns, step=0, parameters=0, behavior="Walker"):
    return TrainerReport(behavior, step, 0, False, None, 0, {}, returns=returns, parameter_generation=parameters)


class School:
    """Curricula, and what behaviours have reached beside their episodes."""

    def __init__(self, max_steps=1000, elo=None, **plain):
        self.curricula = Curricula(parameters(**plain))
        self.max_steps, self.elo, self.step = max_steps, elo, 0

    def hear(self, *returns, step=None, parameters=None, behavior="Walker"):
        """Record a report, judge the lessons, and return the message for the environments."""
        self.step = self.step + 1 if step is None else step
        generation = self.curricula.current_parameters().generation if parameters is None else parameters
        self.curricula.record(report(*returns, step=self.step, parameters=generation, behavior=behavior))
        return self.advance()

    def advance(self):
        state: Any = SimpleNamespace(step=self.step, settings=SimpleNamespace(max_steps=self.max_steps), elo=self.elo)
        return self.curricula.advance({"Walker": state, "Swimmer": state})

    @property
    def lesson(self):
        (lesson,) = self.curricula.lessons.values()
        return lesson


# What environments get. ----------------------------------------------------------------------------------------------


def test_constants_samplers_and_first_lessons_are_sent_as_they_are():
    curricula = Curricula(parameters(gravity=9.81, mass=UNIFORM, height=curriculum({})))
    assert curricula.current_parameters().parameters == {"gravity": 9.81, "mass": UNIFORM, "height": 0.0}
    assert curricula.lessons == {"height": 0}, "only what has lessons is in one"


def test_a_next_lesson_is_sent_in_full_under_a_new_generation():
    school = School(mass=UNIFORM, height=curriculum({"threshold": 1}))
    told = school.hear(2.0)
    assert told.parameters == {"mass": UNIFORM, "height": 1.0}
    assert told.generation > 0
    assert not told.reset


def test_a_lesson_may_ask_for_a_reset():
    assert School(height=curriculum({"require_reset": True})).hear(1.0).reset


def test_the_final_parameters_are_those_of_the_last_lessons():
    told = final_parameters(parameters(mass=UNIFORM, height=curriculum({}, {})))
    assert told.parameters == {"mass": UNIFORM, "height": 2.0}
    assert not final_parameters(None).parameters


# Measuring rewards. --------------------------------------------------------------------------------------------------


def test_the_last_lesson_does_not_end():
    school = School(height=curriculum({}))
    assert school.hear(1.0)
    for _ in range(5):
        assert school.hear(1.0) is None
    assert school.lesson == 1


def test_when_a_lesson_changes_all_means_are_reset():
    school = School(height=curriculum({"min_lesson_length": 3}, {"min_lesson_length": 3}))
    assert school.hear(1.0, 1.0, 1.0)
    assert school.hear(1.0, 1.0) is None
    assert school.hear(1.0)


def test_episodes_that_began_in_an_earlier_lesson_do_not_count():
    school = School(height=curriculum({}, {}, {}))
    first = school.hear(1.0)
    for _ in range(10):
        assert school.hear(1.0, parameters=first.generation - 1) is None
    assert school.lesson == 1
    assert school.hear(1.0, parameters=first.generation)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(-10, 10), st.integers(0, 8))
def test_unsmoothed_a_lesson_ends_exactly_when_the_mean_of_its_last_episodes_is_above(returns, threshold, length):
    school = School(height=curriculum({"threshold": threshold, "min_lesson_length": length}))
    for count in range(1, len(returns) + 1):
        window = returns[max(0, count - max(1, length)) : count]
        mean = sum(window) / len(window)
        if abs(mean - threshold) < 1e-9:
            return  # rounding decides
        ended = school.hear(returns[count - 1]) is not None
        assert ended == (count >= length and mean > threshold)
        if ended:
            return


# Smoothing. ----------------------------------------------------------------------------------------------------------


def smoothed(*criteria):
    return curriculum(*({"signal_smoothing": True, **each} for each in criteria))


def test_smoothing_starts_from_the_first_value_so_that_negative_thresholds_work():
    """From 0, as ML-Agents has it, -1 would become -0.75 and pass at once."""
    school = School(height=smoothed({"threshold": -0.8}))
    assert school.hear(-1.0) is None
    assert school.hear(-0.9) is None
    assert school.hear(-0.5), "0.25 x (0.25 x -1 + 0.75 x -0.9) + 0.75 x -0.5 = -0.606"


def test_the_mean_of_a_lesson_is_not_smoothed_with_that_of_the_one_before():
    school = School(height=smoothed({"threshold": 5}, {"threshold": 1}))
    assert school.hear(100.0)
    assert school.hear(0.0) is None
    assert school.lesson == 1


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.floats(-5, 5))
def test_smoothed_a_lesson_ends_exactly_when_the_recursion_is_above(returns, threshold):
    school = School(height=smoothed({"threshold": threshold}))
    value = returns[0]
    for mean in returns:
        value = 0.25 * value + 0.75 * mean
        if abs(value - threshold) < 1e-9:
            return
        ended = school.hear(mean) is not None
        assert ended == (value > threshold)
        if ended:
            return


# Other measures. -----------------------------------------------------------------------------------------------------


def test_progress_is_the_share_of_max_steps():
    school = School(max_steps=200, height=curriculum({"measure": "progress", "threshold": 0.5}))
    assert school.hear(step=99) is None
    assert school.hear(step=100) is None, "not above"
    assert school.hear(step=101)


def test_elo_is_the_newest_policy_s_rating():
    school = School(elo=1200.0, height=curriculum({"measure": "elo", "threshold": 1250}))
    assert school.hear(1.0) is None
    school.elo = 1250.5
    assert school.hear(step=school.step) is None, "nothing was reported since"
    assert school.hear()


# Several curricula. --------------------------------------------------------------------------------------------------


def test_parameters_advance_independently():
    school = School(
        height=curriculum({"threshold": 1}),
        width=curriculum({"threshold": 5}, {"measure": "progress", "threshold": 0.5}),
    )
    assert school.hear(2.0).parameters == {"height": 1.0, "width": 0.0}
    assert school.hear(6.0).parameters == {"height": 1.0, "width": 1.0}
    assert school.hear(step=501).parameters == {"height": 1.0, "width": 2.0}


def test_lessons_that_end_together_change_together_and_one_of_them_can_request_a_reset():
    school = School(height=curriculum({}), width=curriculum({"require_reset": True}), depth=curriculum({}))
    told = school.hear(1.0)
    assert told.parameters == {"height": 1.0, "width": 1.0, "depth": 1.0}
    assert told.reset


# The log. ------------------------------------------------------------------------------------------------------------


def test_each_decision_is_explained(caplog):
    caplog.set_level(logging.DEBUG, "headrace.pipeline.parts.curricula")
    school = School(distance=curriculum({"threshold": 0.8, "min_lesson_length": 2}, names=["Near", "Far"]))
    assert school.curricula.describe() == ["Parameter 'distance' is in lesson 'Near' and has value 'Float: value=0.0'."]
    school.hear(0.5)
    school.hear(0.5)
    school.hear(1.1, 0.9)
    waits, stays, passes, begins = [record.getMessage() for record in caplog.records]
    assert waits == "lesson 1 'Near' of 'distance' continues: 1 of 2 episodes"
    assert stays == "lesson 1 'Near' of 'distance' continues: mean reward 0.5 is not above 0.8 over 2 episodes"
    assert passes == "lesson 2 'Far' of 'distance': mean reward 1 > 0.8 over 2 episodes"
    assert begins == "Parameter 'distance' is in lesson 'Far' and has value 'Float: value=1.0'."
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG", "INFO", "INFO"]


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("constant", {"value": 3}, "Float: value=3.0"),
        ("uniform", {"min_value": 1, "max_value": 2}, "Uniform sampler: min=1.0, max=2.0"),
        ("gaussian", {"mean": 0.5, "st_dev": 2}, "Gaussian sampler: mean=0.5, stddev=2.0"),
        (
            "multirangeuniform",
            {"intervals": [[0, 1], [3, 4]]},
            "MultiRangeUniform sampler: intervals=[[0.0, 1.0], [3.0, 4.0]]",
        ),
    ],
)
def test_the_sampler_of_a_lesson_is_logged_in_the_format_of_ml_agents(kind, parameters, words):
    value = {"sampler_type": kind, "sampler_parameters": parameters}
    lessons = [{"name": "Only", "value": value}]
    config = RunConfig.from_plain(
        {"behaviors": {"Walk": {}}, "environment_parameters": {"size": {"curriculum": lessons}}}
    )
    assert Curricula(config.environment_parameters).describe() == [
        f"Parameter 'size' is in lesson 'Only' and has value '{words}'."
    ]


# Resuming. -----------------------------------------------------------------------------------------------------------

REPORTS = st.lists(
    st.tuples(st.lists(st.floats(-2, 2), max_size=4), st.integers(0, 3), st.integers(0, 1), st.booleans()), max_size=25
)


@pytest.mark.lengthy
@given(REPORTS, st.integers(0, 25))
def test_a_resumed_run_decides_like_an_uninterrupted_one(reports, cut):
    plain = {
        "height": smoothed({"threshold": -0.5, "min_lesson_length": 3}, {"threshold": 0}, {"threshold": 0.5}),
        "width": curriculum({"measure": "progress", "threshold": 0.01}, {"min_lesson_length": 2, "threshold": 0}),
    }
    whole, resumed = School(**plain), School(**plain)
    for number, (returns, steps, late, judged) in enumerate(reports):
        if number == cut:
            state = json.loads(json.dumps(resumed.curricula.state_dict()))
            again = School(**plain)
            again.curricula.load_state_dict(state)
            again.step, resumed = resumed.step, again
        for school in (whole, resumed):
            school.step += steps
            generation = school.curricula.current_parameters().generation - late
            school.curricula.record(report(*returns, step=school.step, parameters=generation))
        if judged:
            assert whole.advance() == resumed.advance()
    assert whole.curricula.state_dict() == resumed.curricula.state_dict()


def test_a_resumed_curriculum_ignores_progress_it_already_knew():
    school = School(max_steps=100, height=curriculum(*[{"measure": "progress", "threshold": 0.1}] * 2))
    assert school.hear(step=50)
    resumed = School(max_steps=100, height=curriculum(*[{"measure": "progress", "threshold": 0.1}] * 2))
    resumed.curricula.load_state_dict(school.curricula.state_dict())
    assert resumed.hear(step=50) is None
    assert resumed.hear(step=51)


def test_a_configuration_with_other_parameters_keeps_the_lessons_that_are_still_there(caplog):
    school = School(height=curriculum({}, {}), width=curriculum({}))
    assert school.hear(1.0)
    assert school.hear(1.0)
    changed = School(height=curriculum({}), depth=curriculum({}))
    changed.curricula.load_state_dict(school.curricula.state_dict())
    assert changed.curricula.lessons == {"height": 1, "depth": 0}
    assert "'height' was at lesson 3 but now has only 2 lessons" in caplog.text


@pytest.mark.parametrize("measure", ["reward", "progress", "Elo"])
def test_a_value_that_is_not_a_number_ends_no_lesson(measure):
    school = School(elo=float("nan"), height=curriculum({"measure": measure, "threshold": 0.9}))
    assert school.hear(float("nan")) is None
    if measure == "reward":
        assert School(height=smoothed({"threshold": 0})).hear(float("nan")) is None
