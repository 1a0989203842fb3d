"""Old samplers, in files and sections."""

from __future__ import annotations

import pytest

from headrace.config import GaussianSampler, MultiRangeSampler, UniformSampler

SAMPLERS = """
    resampling-interval: 500
    mass:
        sampler-type: "uniform"
        min_value: 0.5
        max_value: 10
    gravity:
        sampler-type: "multirange_uniform"
        intervals: [[7, 10], [15, 20]]
    scale:
        sampler_type: gaussian
        mean: 1
        st-dev: .5
"""
TODAY = "behaviors: {B: {}}\n"


def check_samplers(config) -> None:
    mass, gravity, scale = (config.environment_parameters[name] for name in ("mass", "gravity", "scale"))
    assert isinstance(mass, UniformSampler)
    assert (mass.sampler_parameters.min_value, mass.sampler_parameters.max_value) == (0.5, 10)
    assert isinstance(gravity, MultiRangeSampler)
    assert gravity.sampler_parameters.intervals == ((7, 10), (15, 20))
    assert isinstance(scale, GaussianSampler)
    assert (scale.sampler_parameters.mean, scale.sampler_parameters.st_dev) == (1, 0.5)


def test_a_file_of_samplers_goes_into_the_trainers_file(take, write):
    taken = take(TODAY, sampler=write(SAMPLERS, "samplers.yaml"))
    check_samplers(taken.config)
    assert taken.notes == [
        "samplers.yaml:1: resampling-interval: was removed: values were drawn every 500 steps, with a reset; now they "
        "are drawn for each episode",
        "samplers.yaml:3: sampler-type: is now 'environment_parameters.<name>.sampler_type' (also in line 7)",
        "samplers.yaml:4: min_value: is now 'environment_parameters.<name>.sampler_parameters.min_value'",
        "samplers.yaml:5: max_value: is now 'environment_parameters.<name>.sampler_parameters.max_value'",
        "samplers.yaml:7: sampler-type: multirange_uniform: is now "
        "'environment_parameters.<name>.sampler_type: multirangeuniform'",
        "samplers.yaml:8: intervals: is now 'environment_parameters.<name>.sampler_parameters.intervals'",
        "samplers.yaml:11: mean: is now 'environment_parameters.<name>.sampler_parameters.mean'",
        "samplers.yaml:12: st-dev: is now 'environment_parameters.<name>.sampler_parameters.st_dev'",
    ]


def test_the_interval_may_have_the_name_that_it_had_first(take, write):
    taken = take(TODAY, sampler=write(SAMPLERS.replace("resampling-interval", "episode-length"), "samplers.yaml"))
    check_samplers(taken.config)
    assert taken.notes[0].startswith("samplers.yaml:1: episode-length: was removed: values were drawn every 500 steps")


def test_samplers_may_be_a_section(take):
    section = "parameter_randomization:" + SAMPLERS.replace("\n", "\n  ")
    taken = take(
        f"{TODAY}{section}\n      wind: {{sampler_type: constant, sampler_parameters: {{value: 3}}}}\n      rain: 2"
    )
    check_samplers(taken.config)
    assert taken.config.environment_parameters["rain"] == 2
    assert "old.yaml:2: parameter_randomization: is now 'environment_parameters'" in taken.notes


def test_only_samplers_load_with_the_defaults_and_a_warning(take):
    taken = take(SAMPLERS)
    check_samplers(taken.config)
    assert taken.data["default_settings"] == {"trainer_type": "ppo"}
    assert any("so behaviours learn with the defaults; see --sampler" in note for note in taken.notes)


MISTAKES = [
    (SAMPLERS.replace('"uniform"', "unifrm"), "samplers.yaml:3: environment_parameters.mass.sampler_type: 'unifrm'"),
    (
        SAMPLERS.replace("min_value: 0.5", "min: 0"),
        "samplers.yaml:4: environment_parameters.mass.sampler_parameters.min: unknown key; expected one of max_value, min_value",
    ),
    (
        SAMPLERS.replace("max_value: 10", "max_value: 0"),
        "samplers.yaml:4: environment_parameters.mass.sampler_parameters.min_value: 0.5 is greater than max_value (0)",
    ),
    ("resampling-interval: 5", "samplers.yaml:1: contains no samplers; expected resampling-interval, and parameters"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[expected for _, expected in MISTAKES])
def test_mistakes_in_samplers_are_reported_at_their_place(refuse, write, text: str, expected: str):
    assert refuse(TODAY, sampler=write(text, "samplers.yaml"))[0].startswith(expected)


def test_a_parameter_can_not_have_lessons_and_a_sampler(refuse, write):
    text = "behaviors: {B: {curriculum: {thresholds: [1], parameters: {mass: [1, 2]}}}}"
    (mistake,) = refuse(text, sampler=write(SAMPLERS, "samplers.yaml"))
    assert mistake.startswith("samplers.yaml:2: mass: is already defined (")
