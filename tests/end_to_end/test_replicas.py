"""Runs whose learner has replicas: by the real command, in real processes, which are killed and stopped."""

from __future__ import annotations

import os
import signal
import sys

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


@pytest.mark.slow
def test_a_follower_of_a_learner_in_main_ends_the_run_by_its_name(start):
    command = start(cartpole(**TWO, **LONG, pipeline__hosts__learners__kind="inline"))
    command.until_checkpoint(0)
    os.kill(command.pid_of(FOLLOWER), signal.SIGKILL)
    assert command.wait() == 1
    assert f"the run has failed: {FOLLOWER} was killed by signal 9" in command.output
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
