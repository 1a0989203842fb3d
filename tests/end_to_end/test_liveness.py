"""Whatever hangs is named and ended: learners, actors, stages, main itself; and nothing outlives main."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from run_configs import cartpole

HANGING = [Path(__file__).with_name(f"hanging_{what}.py") for what in ("stages", "trainers")]


@pytest.mark.parametrize("trainer", [pytest.param("ComputingTrainer", marks=pytest.mark.slow), "LockingTrainer"])
def test_a_learner_that_hangs_dies_with_main_and_so_does_its_actor(start, tmp_path, trainer):
    command = start(cartpole(behaviors__CartPole__trainer_type=f"hanging_trainers:{trainer}"), beside=HANGING)
    command.until((tmp_path / "hangs").exists, "a learner that hangs")
    command.process.kill()
    command.wait()
    command.assert_left_nothing()


SOON = {"warn_s": 2, "end_s": 5}
LIMITS = {f"pipeline__supervision__{role}": SOON for role in ("actors", "learners", "main")}


@pytest.mark.slow  # tests/chaos has it too
def test_a_learner_that_is_stopped_is_named_and_replaced(start):
    command = start(cartpole(behaviors__CartPole__max_steps=10**7, **LIMITS))
    number = command.until_checkpoint(1).number
    actor = command.pid_of("actor-0")
    os.kill(command.pid_of("learner-CartPole"), signal.SIGSTOP)
    command.until_checkpoint(number + 3)
    assert "(pipeline.supervision.learners.warn_s): its process does not run: it was stopped" in command.output
    assert "learner-CartPole goes on from step" in command.output
    assert command.pid_of("actor-0") == actor
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


@pytest.mark.slow  # tests/chaos has it too
def test_a_learner_that_is_stopped_and_may_not_be_replaced_is_named_and_ends_the_run(start):
    command = start(cartpole(behaviors__CartPole__max_steps=10**7, env_settings__restarts_rate_limit_n=0, **LIMITS))
    command.until(lambda: "Step: 1000." in command.output, "the first summary")
    os.kill(command.pid_of("learner-CartPole"), signal.SIGSTOP)
    assert command.wait() == 1, command.output
    assert "(pipeline.supervision.learners.warn_s): its process does not run: it was stopped" in command.output
    assert "learner-CartPole has been silent for" in command.output
    assert "the process of learner-CartPole was killed by signal 9. It is not restarted again" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["ComputingTrainer", "LockingTrainer"])
def test_a_learner_that_hangs_is_named_with_its_stack_and_ends_the_run(start, trainer):
    limits = {**LIMITS, "env_settings__restarts_rate_limit_n": 0}
    plain = cartpole(behaviors__CartPole__trainer_type=f"hanging_trainers:{trainer}", **limits)
    command = start(plain, beside=HANGING)
    assert command.wait() == 1, command.output
    assert "(pipeline.supervision.learners.warn_s)" in command.output
    assert "hanging_stages.py" in command.output
    assert "in hang" in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_an_evaluation_that_is_stopped_is_named_and_started_again_and_the_run_goes_on(start):
    plain = cartpole(evaluation={"every": 500, "episodes": 1}, behaviors__CartPole__max_steps=10**7, **LIMITS)
    command = start(plain)
    command.until(lambda: "Step: 1000." in command.output, "the first summary")
    os.kill(command.pid_of("evaluation"), signal.SIGSTOP)
    command.until(lambda: "Evaluation has failed: evaluation has been silent for" in command.output, "its end")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "key"),
    [("main", "main"), pytest.param("", "actors", marks=pytest.mark.slow)],
)
def test_a_stage_that_awaits_for_ever_is_named_and_ended(start, host, key):
    stage = {"use": "hanging_stages:Awaits", **({"host": host} if host else {})}
    command = start(cartpole(pipeline__stages=[stage], env_settings__restarts_rate_limit_n=0, **LIMITS), beside=HANGING)
    assert command.wait() == 1, command.output
    assert f"(pipeline.supervision.{key}.warn_s): stage Awaits" in command.output
    assert "in _answer" in command.output
    assert f"(pipeline.supervision.{key}.end_s)" in command.output
    command.assert_left_nothing()


@pytest.mark.slow  # tests/chaos has it too
@pytest.mark.parametrize("how", ["compute", "sleep"])
def test_a_stage_that_holds_mains_event_loop_is_named_and_fails_by_name(start, how):
    stage = {"use": "hanging_stages:Hangs", "host": "main", "with": {"how": how}}
    command = start(cartpole(pipeline__stages=[stage], **LIMITS), beside=HANGING)
    assert command.wait() == 1, command.output
    assert "main has been silent for" in command.output
    assert "stage Hangs" in command.output
    assert "the run has failed: stage Hangs" in command.output
    assert "in hang" in command.output
    command.assert_left_nothing()


def test_a_second_signal_ends_a_run_whose_event_loop_is_held(start, tmp_path):
    stage = {"use": "hanging_stages:Hangs", "host": "main", "with": {"how": "sleep"}}
    command = start(cartpole(pipeline__stages=[stage]), beside=HANGING)
    command.until((tmp_path / "hangs").exists, "a stage that hangs")
    command.interrupt()
    command.until(lambda: "A second signal ends it at once." in command.output, "the first signal's answer")
    command.interrupt()
    assert command.wait() == 130, command.output
    assert "in hang" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_run_that_is_stopped_as_a_whole_goes_on_when_it_continues(start):
    command = start(cartpole(behaviors__CartPole__max_steps=10**7, **LIMITS))
    command.until(lambda: "Step: 1000." in command.output, "the first summary")
    said, stopped = len(command.output), command.processes()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(12)  # what is tested is that this time does not count
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    summaries = command.output.count("Step: ")
    command.until(lambda: command.output.count("Step: ") > summaries + 2, "further summaries")
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "has been silent" not in command.output[said:]
