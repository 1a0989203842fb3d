"""The coordinator with its hosts, in virtual time: what it makes of deaths, failures and requests to stop."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace

import pytest
from fakes import Cast
from flow_harness import Flow, Scenario, Trained, run_flow

from headrace.pipeline.control import BeginCheckpoint, LogLine

ENDLESS = Scenario(trained=(Trained("Walker", 8, 5, 10**6),), casts=(Cast("Walker", agents=2),))
FINITE = Scenario(trained=(Trained("Walker", 8, 5, 20),), casts=(Cast("Walker", agents=2),), replicas=2)


async def until_updated(flow: Flow, updates: int = 3) -> None:
    while "Walker" not in flow.trainers or flow.trainers["Walker"].version < updates:
        flow.learned.clear()
        await flow.learned.wait()


@pytest.mark.lengthy
def test_a_killed_actor_is_replaced_by_one_with_a_new_source(caplog):
    async def kill(flow: Flow) -> None:
        await until_updated(flow)
        flow.network.kill("actor-1")

    flow = run_flow(FINITE, kill)
    assert [(run.source, run.replica) for run in flow.actors.values()] == [(0, 0), (1, 1), (2, 1)]
    assert {batch.source for batch in flow.trainers["Walker"].batches} == {0, 1, 2}
    assert "The process of actor-1 ended with status 1. Restarting it" in caplog.text


def test_an_actor_that_has_been_restarted_too_often_ends_the_run_which_saves_what_was_learned():
    async def kill(flow: Flow) -> None:
        for _ in range(2):
            await until_updated(flow, flow.trainers["Walker"].version + 3 if flow.trainers else 3)
            flow.network.kill("actor-0")

    scenario = Scenario(ENDLESS.trained, ENDLESS.casts, restarts=1)
    flow = run_flow(scenario, kill, fails=True)
    assert len(flow.actors) == 2
    assert "ended with status 1. It is not restarted again" in flow.coordinator.shutdown.failure.message
    assert flow.coordinator.checkpointing.newest == 0


def test_an_actor_that_ends_in_order_in_the_middle_of_the_run_ends_the_run_which_saves_what_was_learned():
    async def cut_off(flow: Flow) -> None:
        await until_updated(flow)
        next(queue for queue in flow.network.queues if queue.name == "trajectories/Walker").close()

    scenario = Scenario(ENDLESS.trained, ENDLESS.casts, replicas=2)
    flow = run_flow(scenario, cut_off, fails=True)
    assert re.match(r"actor-\d ended in the middle of the run", flow.coordinator.shutdown.failure.message)
    assert flow.coordinator.checkpointing.newest == 0


def test_a_dead_learner_ends_the_run_and_no_checkpoint_is_made_without_it():
    async def kill(flow: Flow) -> None:
        await until_updated(flow)
        flow.network.kill("learner-Walker")

    flow = run_flow(ENDLESS, kill, fails=True)
    assert flow.coordinator.shutdown.failure.message == "the process of learner-Walker ended with status 1."
    assert flow.coordinator.checkpointing.newest == -1


APART = Scenario(
    (Trained("Walker", 8, 5, 30),), ENDLESS.casts, replicas=2, apart=True, checkpoint_interval=40, slowness_s=(1e-4,)
)


@pytest.mark.lengthy
def test_a_lost_learner_continues_from_the_newest_checkpoint_and_its_actors_as_new_sources(caplog):
    async def kill(flow: Flow) -> None:
        while flow.coordinator.checkpointing.newest < 1:
            await until_updated(flow, flow.trainers["Walker"].version + 1 if flow.trainers else 1)
        flow.network.kill("learner-Walker")

    flow = run_flow(APART, kill)
    assert [(run.source, run.replica) for run in flow.actors.values()] == [(0, 0), (1, 1)]
    assert flow.trainers["Walker"].step >= 240
    assert flow.trainers["Walker"].step > sum(batch.num_rows for batch in flow.trainers["Walker"].batches)
    assert {2, 3} <= {batch.source for batch in flow.trainers["Walker"].batches} <= {0, 1, 2, 3}
    assert "learner-Walker continues from step" in caplog.text
    assert flow.coordinator.checkpointing.newest > 2


@pytest.mark.lengthy
def test_a_learner_that_is_lost_before_the_first_checkpoint_restarts(caplog):
    async def kill(flow: Flow) -> None:
        await until_updated(flow, 2)
        flow.network.kill("learner-Walker")

    flow = run_flow(replace(APART, checkpoint_interval=10**6), kill)
    assert flow.trainers["Walker"].step >= 240
    assert "continues from the start, because there is no checkpoint" in caplog.text


@pytest.mark.lengthy
def test_a_learner_that_is_lost_too_often_ends_the_run():
    async def kill(flow: Flow) -> None:
        for time in range(2):
            await until_updated(flow, 3 * (time + 1))
            flow.network.kill("learner-Walker")

    flow = run_flow(replace(APART, restarts=1), kill, fails=True)
    assert "ended with status 1. It is not restarted again" in flow.coordinator.shutdown.failure.message


def test_a_dead_learner_costs_the_others_their_checkpoint_but_not_their_policies(caplog):
    async def kill(flow: Flow) -> None:
        await until_updated(flow)
        flow.network.kill("learner-Rival")

    casts = (*ENDLESS.casts, Cast("Rival", agents=2))
    flow = run_flow(Scenario((*ENDLESS.trained, Trained("Rival", 8, 5, 10**6)), casts), kill, fails=True)
    assert flow.coordinator.shutdown.failure.message == "the process of learner-Rival ended with status 1."
    assert "there is no earlier one: learner-Rival ended before it delivered trainer@" in caplog.text
    assert flow.coordinator.checkpointing.newest == -1
    exports = {name: bool(state.exports) for name, state in flow.coordinator.starter.behaviors.items()}
    assert exports == {"Walker": True, "Rival": False}
    assert not flow.network.killed


@pytest.mark.lengthy
def test_an_actor_that_fails_ends_the_run_which_saves_what_was_learned():
    scenario = Scenario(ENDLESS.trained, ENDLESS.casts, breaks_at=(90,), restarts=0)
    flow = run_flow(scenario, fails=True)
    assert "the simulator crashed at tick 90" in flow.coordinator.shutdown.failure.message
    assert flow.coordinator.shutdown.failure.stage == "actor"
    assert flow.coordinator.checkpointing.newest == 0


@pytest.mark.lengthy
def test_repeated_environment_warnings_of_several_actors_are_logged_once(caplog):
    environment, actor = "headrace.stages.environments.checks", "headrace.stages.actor"

    async def warn(flow: Flow) -> None:
        await until_updated(flow)
        hosts = {host.plan.name: host for host in flow.coordinator.running.hosts.values()}
        for name in ("actor-0", "actor-1", "actor-0"):
            for level in (logging.WARNING, logging.ERROR):
                await flow.coordinator.on_message(hosts[name], LogLine(level, environment, f"said at {level}"))
            await flow.coordinator.on_message(hosts[name], LogLine(logging.WARNING, actor, "Restarting it"))

    run_flow(FINITE, warn)
    said = [message for message in caplog.messages if message.startswith("said at")]
    assert said.count(f"said at {logging.WARNING}") == 2, "one host may say a thing again"
    assert said.count(f"said at {logging.ERROR}") == 3
    assert caplog.messages.count("Restarting it") == 3, "each was restarted"


def test_a_stop_request_makes_a_last_checkpoint(caplog):
    async def stop(flow: Flow) -> None:
        await until_updated(flow)
        flow.stop.set()

    with caplog.at_level(logging.INFO):
        flow = run_flow(ENDLESS, stop)
    assert flow.coordinator.shutdown.ended_by == "stop"
    assert flow.coordinator.checkpointing.newest == 0
    assert "Learning was interrupted." in caplog.text


def test_a_stop_request_before_any_agent_is_seen_ends_the_run_without_a_checkpoint():
    async def stop(flow: Flow) -> None:
        flow.stop.set()

    flow = run_flow(ENDLESS, stop)
    assert flow.coordinator.starter.behaviors == {}
    assert flow.coordinator.checkpointing.newest == -1


@pytest.mark.lengthy
def test_a_behaviour_that_is_first_seen_as_the_run_ends_keeps_no_host_from_ending():
    """`run_flow` asserts that all hosts end by themselves; some of these ticks are just before the end."""
    walker, rival = Trained("Walker", 8, 5, 3), Trained("Rival", 8, 5, 3)
    for tick in range(7, 24, 2):
        casts = (Cast("Walker", agents=2), Cast("Rival", agents=2, joins_at=tick))
        flow = run_flow(Scenario((walker, rival), casts, replicas=2, slowness_s=(0.0, 1e-3)))
        assert flow.trainers["Walker"].step >= 24


@pytest.mark.lengthy
def test_a_checkpoint_that_was_lost_with_a_killed_actor_is_requested_again(caplog):
    announced = asyncio.Event()

    async def kill(flow: Flow) -> None:
        flow.network.sent = lambda message: announced.set() if isinstance(message, BeginCheckpoint) else None
        await announced.wait()
        flow.network.kill("actor-0")

    with caplog.at_level(logging.DEBUG, logger="headrace.pipeline.main.checkpointing"):
        flow = run_flow(Scenario(FINITE.trained, FINITE.casts, checkpoint_interval=40, slowness_s=(1e-3,)), kill)
    assert len(flow.actors) == 2
    assert "checkpoint 0 is complete" in caplog.text
