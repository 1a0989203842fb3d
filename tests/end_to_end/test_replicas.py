"""Runs whose learner has replicas: by the real command, in real processes, which are killed and stopped."""

from __future__ import annotations

import os
import re
import signal
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from run_configs import cartpole, sac, volley
from run_folders import read_whole_checkpoint, streams, weights_digest

pytestmark = [
    pytest.mark.lengthy,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]

TWO = {"pipeline__hosts__learners__replicas": 2}
LONG = {"behaviors__CartPole__max_steps": 10**7}
LEARNER = "learner-CartPole"
FOLLOWER = "learner-CartPole-replica-1"


def weights(folder, behavior="CartPole"):
    return read_whole_checkpoint(folder)[f"trainer@learner-{behavior}"]["policy"]["weights"]


def done(command):
    """The run folder of a command that ends well."""
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    return command.run_folder


@pytest.mark.slow
def test_a_recorded_run_of_two_replicas_is_replayed_and_resumed_by_one_and_by_three(start):
    command = start(cartpole(**TWO, record__edges=["trainer"]))
    recorded = {"streams": streams(done(command))}
    by_two = done(start({**cartpole(**TWO), "replay": recorded}, run_id="by-two"))
    assert weights_digest(by_two) == weights_digest(command.run_folder)
    by_one = done(start({**cartpole(), "replay": recorded}, run_id="by-one"))
    assert np.abs(weights(by_one) - weights(command.run_folder)).max() < 1e-3
    for steps, replicas in ((4000, 1), (5000, 3)):
        changes = {"pipeline__hosts__learners__replicas": replicas, "behaviors__CartPole__max_steps": steps}
        done(start(cartpole(**changes), "--resume"))
        assert read_whole_checkpoint(command.run_folder)["trainer@learner-CartPole"]["trainer"]["step"] >= steps


@pytest.mark.slow  # test_crash.py kills a follower each time
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_learner_whose_follower_is_lost_goes_on_from_the_last_checkpoint_with_new_ones(start, name):
    limits = {"pipeline__supervision__learners": {"warn_s": 4.0, "end_s": 4.0}}
    command = start(cartpole(**TWO, **LONG, **limits))
    before = command.until_checkpoint(0).number
    actor, learner, follower = (command.pid_of(name) for name in ("actor-0", LEARNER, FOLLOWER))
    os.kill(follower, signal.Signals[name])
    command.until(lambda: f"{LEARNER} continues from step" in command.output, "another learner")
    command.until_checkpoint(before + 2)  # one may have been under way
    assert command.pid_of("actor-0") == actor
    assert command.pid_of(LEARNER) != learner
    assert command.pid_of(FOLLOWER) != follower
    command.interrupt()
    assert command.wait() == 0, command.output
    how = rf"{FOLLOWER} was killed by signal 9" if name == "SIGKILL" else rf".* \({FOLLOWER}\)"
    assert re.search(rf"The process of {LEARNER} was ended, because {how}. Restarting it", command.output)
    if name == "SIGSTOP":
        assert f"{FOLLOWER} does not respond to its learner: its process is not running" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_follower_that_is_lost_again_and_again_ends_the_run_by_its_name(start):
    command = start(cartpole(**TWO, **LONG))
    os.kill(command.pid_of(FOLLOWER), signal.SIGKILL)  # as it starts
    command.until(lambda: f"{LEARNER} continues from the start" in command.output, "another learner")
    os.kill(command.pid_of(FOLLOWER), signal.SIGKILL)
    assert command.wait() == 1
    told = f"the process of {LEARNER} was ended, because {FOLLOWER} was killed by signal 9. It is not restarted again"
    assert told in command.output.partition("the run has failed: ")[2]
    assert "Traceback" not in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_follower_of_a_learner_in_main_ends_the_run_by_its_name(start):
    command = start(cartpole(**TWO, **LONG, pipeline__hosts__learners__kind="inline"))
    command.until_checkpoint(0)
    os.kill(command.pid_of(FOLLOWER), signal.SIGKILL)
    assert command.wait() == 1
    assert f"the run has failed: {FOLLOWER} was killed by signal 9" in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_of_three_replicas_the_lost_one_is_named(start):
    command = start(cartpole(**LONG, pipeline__hosts__learners__replicas=3))
    command.until_checkpoint(0)
    os.kill(command.pid_of("learner-CartPole-replica-2"), signal.SIGKILL)
    command.until(lambda: f"{LEARNER} continues from step" in command.output, "another learner")
    assert f"{LEARNER} was ended, because {LEARNER}-replica-2 was killed by signal 9" in command.output
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("host", ["main", "learner-CartPole"])
def test_followers_end_with_main_and_with_their_learner(start, host):
    command = start(cartpole(**TWO, **LONG, env_settings__restarts_rate_limit_n=0))
    command.until_checkpoint(0)
    os.kill(command.process.pid if host == "main" else command.pid_of(host), signal.SIGKILL)
    command.wait()
    command.until_gone()
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_deterministic_run_of_two_replicas_gives_the_same_again(start):
    plain = cartpole(**TWO, pipeline__deterministic=True)
    first, second = (done(start(plain, run_id=name)) for name in ("first", "second"))
    assert weights_digest(first) == weights_digest(second)


@pytest.mark.slow
@pytest.mark.parametrize(("plain", "behavior"), [(volley(**TWO), "Volley"), (sac(**TWO), "Pendulum")])
def test_self_play_and_sac_learn_with_replicas_and_resume(start, plain, behavior):
    part = f"trainer@learner-{behavior}"
    before = read_whole_checkpoint(done(start(plain)))[part]["trainer"]["step"]
    plain["behaviors"][behavior]["max_steps"] = before + 300
    after = read_whole_checkpoint(done(start(plain, "--resume")))[part]["trainer"]["step"]
    assert after >= before + 300


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_two_replicas_on_ray_learn_what_they_learn_in_processes(start):
    command = start(cartpole(**TWO, record__edges=["trainer"]))
    recorded = {"streams": streams(done(command))}
    on_ray = {"pipeline__hosts__actors": {"kind": "ray"}, "pipeline__hosts__learners": {"kind": "ray", "replicas": 2}}
    again = start({**cartpole(**on_ray), "replay": recorded}, run_id="ray")
    assert weights_digest(done(again)) == weights_digest(command.run_folder)
