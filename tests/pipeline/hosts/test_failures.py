"""A failure as people are told of it."""

from __future__ import annotations

import pytest

from config import ConfigError
from pipeline.errors import RunError
from pipeline.hosts.runtime import describe_failure
from stages.errors import StageError
from stages.loop import StageFailure


@pytest.mark.parametrize("mistake", [RunError("there is no model"), ConfigError(["behaviors: no 'Ball'"])])
def test_a_mistake_in_what_was_asked_for_is_not_blamed_on_the_stage_that_came_upon_it(mistake):
    told = describe_failure("actor-0", StageFailure("actor", "while starting", mistake))
    assert (told.message, told.stage) == (str(mistake), "actor")


def test_a_stage_s_own_failure_names_it():
    told = describe_failure("actor-0", StageFailure("actor", "while starting", StageError("the port is taken")))
    assert told.message == "stage actor failed while starting: the port is taken"


def test_of_a_failure_that_nobody_foresaw_the_kind_is_told():
    assert describe_failure("main", KeyError("x")).message == "KeyError: 'x'"
