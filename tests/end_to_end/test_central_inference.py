"""Whole runs in which one host decides for all actors."""

from __future__ import annotations

import asyncio
import os
import re
import signal

import pytest
from page_calls import Page
from run_configs import INLINE, Plain, cartpole, changed, remembering, sac, unrolling, volley
from run_folders import read_whole_checkpoint
from runs import run_here

from headrace.pipeline.run import RunOptions
from headrace.stages.trainer.input_tracking import VARIABLE


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
@pytest.mark.parametrize("kind", ["process", "inline"])
@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(volley(), id="self-play"),
        pytest.param(remembering(), id="memory"),
        pytest.param(unrolling(), id="impala with a memory"),
        pytest.param(sac(), id="sac"),
        pytest.param(sac(behaviors__Pendulum__network_settings__gsde={}), id="gSDE"),
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
def test_whatever_is_learned_it_goes_to_its_end(kind, plain, tmp_path):
    everywhere = {**INLINE, "pipeline__hosts__inference__kind": "inline"} if kind == "inline" else {}
    result = run_here(central(plain, **everywhere), tmp_path, "run")
    (behavior,) = result.behaviors.values()
    (settings,) = plain["behaviors"].values()
    assert behavior.step >= settings["max_steps"]
    read_whole_checkpoint(result.folder)


@pytest.mark.slow
def test_a_policy_that_was_learned_is_played_by_the_host_too(tmp_path):
    run_here(central(cartpole()), tmp_path, "run")
    stop = asyncio.Event()

    def look(snapshot):
        if any(behavior.steps > 100 for behavior in snapshot.behaviors):
            stop.set()

    options = RunOptions(stop=stop, on_progress=look)
    played = run_here(central(cartpole()), tmp_path, "run", options, resume=True, inference=True)
    assert played.behaviors["CartPole"].step > 100


@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_asks_anew(start):
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


@pytest.mark.slow
def test_the_live_page_shows_who_asks_and_who_decides(start):
    command = start(central(cartpole(behaviors__CartPole__max_steps=10**8)), "--monitor=0")
    page = Page(command)
    state = page.until(lambda s: s["behaviors"] and s["behaviors"][0]["step"] > 2000, "some steps")
    hosts = {host["name"]: host["stages"] for host in state["hosts"]}
    assert hosts["inference"] == ["inference"]
    assert hosts["main"] == ["policy_publisher", "requests"]
    wired = {(edge["kind"], *edge["source"], *edge["target"]) for edge in state["edges"]}
    actors = ("actor-0", "actor-1")
    publisher, relay, decider = ("main", "policy_publisher"), ("main", "requests"), ("inference", "inference")
    assert wired >= {
        *(("requests", actor, "environment", *relay) for actor in actors),
        *(("answers", *relay, actor, "environment") for actor in actors),
        ("asked", *relay, *decider),
        ("answered", *decider, *relay),
        ("policies", *publisher, *decider),
        *(("policies", *publisher, actor, "environment") for actor in actors),
    }
    command.interrupt()
    assert command.wait() == 0, command.output
