"""Whole runs in which one host decides for all actors."""

from __future__ import annotations

import os
import re
import signal

import pytest
from run_configs import INLINE, Plain, cartpole, changed, remembering, sac, unrolling, volley
from run_folders import read_whole_checkpoint
from runs import run_here

from headrace.stages.trainer.deliveries import VARIABLE


def central(plain: Plain, **changes: object) -> Plain:
    return changed(plain, {"pipeline__inference": "central", "pipeline__hosts__actors__replicas": 2, **changes})


@pytest.mark.slow
def test_two_actors_learn_by_the_policies_of_one_host(start):
    learns = {"buffer_size": 500, "batch_size": 100, "num_epoch": 8, "learning_rate": 3e-3}
    plain = central(cartpole(behaviors__CartPole__hyperparameters=learns, torch_settings__device="cpu"))
    plain["behaviors"]["CartPole"] |= {"max_steps": 10_000, "checkpoint_interval": 5000, "summary_freq": 2000}
    command = start(plain)
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    assert "Traceback" not in command.output
    rewards = [float(reward) for reward in re.findall(r"Mean Reward: ([\d.]+)\.", command.output)]
    assert max(rewards) > 50.0, "chance has 22"
    read_whole_checkpoint(command.run_folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(volley(), id="self-play"),
        pytest.param(remembering(), id="memory"),
        pytest.param(unrolling(), id="impala with a memory"),
        pytest.param(
            sac(
                behaviors__Pendulum__network_settings__gsde={"sample_freq": 3},
                behaviors__Pendulum__network_settings__memory={"memory_size": 8, "sequence_length": 8},
            ),
            id="gSDE with a memory",
        ),
        pytest.param(volley(behaviors__Volley__self_play__brains=[{"use": "random", "weight": 0.4}]), id="brains"),
    ],
)
def test_each_kind_of_policy_trains_to_its_end(plain, tmp_path):
    result = run_here(central(plain, **INLINE, pipeline__hosts__inference__kind="inline"), tmp_path, "run")
    (behavior,) = result.behaviors.values()
    (settings,) = plain["behaviors"].values()
    assert behavior.step >= settings["max_steps"]
    read_whole_checkpoint(result.folder)


@pytest.mark.slow
def test_a_killed_actor_is_replaced(start):
    long = central(cartpole(behaviors__CartPole__max_steps=10**7))
    command = start(long, environment={VARIABLE: "all"})
    number = command.until_checkpoint(1).number
    killed = command.pid_of("actor-0")
    os.kill(killed, signal.SIGKILL)
    command.until_checkpoint(number + 3)
    assert command.pid_of("actor-0") != killed
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    read_whole_checkpoint(command.run_folder)
