"""Real `kill -9` of an actor and a learner: nothing stays behind, and no checkpoint is ever lost.

test_determinism.py kills main, and test_coordinator.py has what a killed host costs, with scripted ones.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys

import pytest
from run_configs import INLINE, TROUBLED_ENV, cartpole, changed, sac, volley
from run_folders import read_whole_checkpoint
from runs import COMMAND, run_here

from headrace.stages.trainer.deliveries import VARIABLE

LONG = cartpole(behaviors__CartPole__max_steps=10**7, behaviors__CartPole__checkpoint_interval=1000)
"""A run with process hosts that goes on until it is stopped, with many checkpoints."""
LONG_PLAY = volley(behaviors__Volley__max_steps=10**7, behaviors__Volley__checkpoint_interval=1000)
"""The same, whose trajectories go through main."""


@pytest.mark.parametrize(
    ("plain", "behavior"),
    [
        pytest.param(LONG, "CartPole", id="straight to the learner", marks=pytest.mark.slow),
        pytest.param(LONG_PLAY, "Volley", id="through main", marks=pytest.mark.slow),
        pytest.param(sac(behaviors__Pendulum__max_steps=10**7), "Pendulum", id="sac", marks=pytest.mark.slow),
    ],
)
def test_a_killed_learner_resumes_from_the_last_checkpoint_and_its_actors_stay(start, plain, behavior):
    command = start(changed(plain, {"pipeline__hosts__actors__replicas": 2}))
    assert_learner_replaced(command, behavior)
    ended(command)
    assert events_in_order(command.run_folder / behavior)


def test_an_actor_that_exits_and_a_learner_whose_follower_is_killed_are_replaced(start, tmp_path):
    """test_leftovers.py kills an actor."""
    leaving = {"trouble": "os._exit", "after": 100, "once": str(tmp_path / "happened")}
    plain = changed(LONG, {"environment__factory": "troubled_env:TroubledEnv", "environment__options": leaving})
    del plain["environment"]["id"]
    plain = changed(plain, {"pipeline__hosts__actors__replicas": 2, "pipeline__hosts__learners__replicas": 2})
    command = start(plain, beside=[TROUBLED_ENV], environment={VARIABLE: "once"})  # the lost learner had some
    told = r"actor-\d ended with status 0 before the run was over\. Restarting it"
    command.until(lambda: bool(re.search(told, command.output)), "another actor")
    command.until(lambda: {"actor-0", "actor-1"} <= command.hosts().keys(), "both actors")
    follower = "learner-CartPole-replica-1"
    assert_learner_replaced(command, "CartPole", follower, f"ended, because {follower} was killed by signal 9")
    ended(command)
    assert events_in_order(command.run_folder / "CartPole")
    assert_resumes(command, changed(plain, {"pipeline__hosts__learners__replicas": 1}))


def assert_learner_replaced(command, behavior, killed=None, how="killed by signal 9"):
    """Kill the learner, or its follower: another one goes on from the last checkpoint, and its actors stay."""
    learner = f"learner-{behavior}"
    number = command.until_checkpoint(1).number
    before = command.hosts()
    kill(command, killed or learner)
    command.until_checkpoint(number + 3)  # one may have been under way
    assert f"The process of {learner} was {how}. Restarting it" in command.output
    (told,) = re.findall(rf"{learner} continues from step (\d+), its last checkpoint", command.output)
    assert int(told) >= number * 100
    after = command.hosts()
    for replaced in {learner, killed or learner}:
        assert after.pop(replaced) != before.pop(replaced)
    assert after == before


def ended(command):
    """Interrupt the command, and see it end well."""
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_killed_learner_at_the_restart_limit_ends_the_run_which_can_be_resumed(start):
    command = start(changed(LONG, {"env_settings__restarts_rate_limit_n": 0}))
    command.until_checkpoint(1)
    kill(command, "learner-CartPole")
    assert command.wait() == 1, command.output
    assert "the process of learner-CartPole was killed by signal 9. It is not restarted again" in command.output
    assert "--run-id run --resume" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
    assert_resumes(command)


@pytest.mark.slow
def test_kills_at_random_moments_never_lose_the_last_checkpoint(tmp_path):
    benchmark = COMMAND.parents[1] / "benchmarks" / "kill.py"
    told = subprocess.run(
        [sys.executable, str(benchmark), "--times", "60", "--seed", "0", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert " 0 violations" in told.stdout


def kill(command, host):
    pid = command.pid_of(host)
    os.kill(pid, signal.SIGKILL)
    return pid


def events_in_order(folder):
    """TensorBoard shows one curve, whose steps rise: what was lost is not in it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    steps = [event.step for event in shown.Scalars("Pipeline/Steps per Second")]
    return len(steps) > 1 and all(later > earlier for earlier, later in itertools.pairwise(steps))


def assert_resumes(command, plain=LONG):
    """The newest checkpoint is whole, and training goes on from it for some updates."""
    states = read_whole_checkpoint(command.run_folder)
    step = states["trainer@learner-CartPole"]["trainer"]["step"]
    more = changed(plain, {"behaviors__CartPole__max_steps": step + 1200, **INLINE})
    result = run_here(more, command.results, "run", resume=True)
    assert result.behaviors["CartPole"].step >= step + 1200
    assert result.behaviors["CartPole"].version > states["trainer@learner-CartPole"]["trainer"]["version"]
