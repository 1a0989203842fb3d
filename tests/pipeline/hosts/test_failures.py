"""A failure as it is reported."""

from __future__ import annotations

import pytest

from headrace.config import ConfigError
from headrace.config.errors import Mistake
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.control import decode, encode
from headrace.pipeline.hosts.protocol import describe_failure
from headrace.queues.errors import SpecError
from headrace.stages.errors import StageError
from headrace.stages.loop import StageFailure


@pytest.mark.parametrize(
    "mistake", [RunError("there is no model"), ConfigError([Mistake("run.yaml", 3, "behaviors", "no 'Ball'")])]
)
def test_a_mistake_in_the_request_is_not_blamed_on_the_stage_that_found_it(mistake):
    told = describe_failure("actor-0", StageFailure("actor", "while starting", mistake))
    assert (told.message, told.stage) == (str(mistake), "actor")


def test_an_environment_s_failure_names_the_environment_and_not_the_actor_that_came_upon_it():
    failure = StageFailure("actor", "while producing", StageError("Unity worker 0 hangs"))
    told = describe_failure("actor-0", failure)
    assert (told.message, told.stage) == ("Unity worker 0 hangs", "actor")


def test_a_stage_s_own_failure_names_it():
    told = describe_failure("main", StageFailure("Clips", "while starting", StageError("there is no room")))
    assert told.message == "stage Clips failed while starting: there is no room"


def test_an_unforeseen_failure_is_reported_with_its_type():
    assert describe_failure("main", KeyError("x")).message == "KeyError: 'x'"


def test_a_malformed_behaviour_id_is_reported_without_its_kind():
    told = describe_failure("actor-0", StageFailure("actor", "while starting", SpecError("behaviour id 'B?team=x'")))
    assert told.message == "behaviour id 'B?team=x'"


def test_a_failure_tells_which_key_is_to_blame_and_whether_a_user_s_code_raised_it():
    mistake = StageError("nobody is in team 1", key=("environment", "behaviors"))
    told = describe_failure("actor-0", StageFailure("actor", "while starting", mistake))
    assert (told.key, told.of_user) == (("environment", "behaviors"), False)
    assert decode(encode(told)) == told

    try:
        int("x")  # this file stands for a user's
    except ValueError as error:
        mistake.__cause__ = error
    assert describe_failure("actor-0", mistake).of_user
