"""The rules of a run's last checkpoint, in virtual time: who is waited for, for how long, and what is saved without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from fakes import Cast
from flow_harness import Flow, Scenario, Trained, run_flow

from headrace.config import RunConfig
from headrace.pipeline.control import BeginCheckpoint
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.queues.messages import TrajectoryBatch
from headrace.stages import Stage

WALKER = (Trained("Walker", 8, 5, 10**6),)
CAST = (Cast("Walker", agents=2),)
GRACE_S = 60.0

During = Callable[[Flow], Coroutine[Any, Any, None]]


class Stopped:
    """Stops a run at some event, and notes how long its last checkpoint takes and which parts are in it."""

    def __init__(self, event: During) -> None:
        self._event = event
        self.took_s = -1.0
        self.parts: set[str] = set()

    async def __call__(self, flow: Flow) -> None:
        await self._event(flow)
        before, began_s = flow.coordinator.checkpointing.newest, asyncio.get_running_loop().time()
        flow.stop.set()
        while flow.coordinator.checkpointing.newest == before:  # noqa: ASYNC110 - of time that is virtual
            await asyncio.sleep(0.1)
        self.took_s = asyncio.get_running_loop().time() - began_s
        made = newest_checkpoint(flow.coordinator.checkpointing.folder)
        assert made is not None
        self.parts = set(made.parts)


async def hung(flow: Flow) -> None:
    await flow.hung.wait()


async def dies(flow: Flow) -> None:
    while "Walker" not in flow.trainers or flow.trainers["Walker"].version < 3:
        flow.learned.clear()
        await flow.learned.wait()
    asyncio.get_running_loop().call_soon(flow.network.kill, "actor-0")


@pytest.mark.lengthy
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_actor_that_hangs_is_left_behind_after_a_sixth_of_the_grace(deterministic, caplog):
    """In a deterministic run, where an actor follows commands only where it stands still, after all of it."""
    stopped = Stopped(hung)
    lag = 0 if deterministic else 1
    scenario = Scenario(WALKER, CAST, hangs_at=((0, 60),), deterministic=deterministic, max_policy_lag=lag)
    flow = run_flow(scenario, stopped, fails=True)
    limit_s = GRACE_S if deterministic else GRACE_S / 6
    assert limit_s <= stopped.took_s <= limit_s + 3.0
    assert stopped.parts == {"trainer@learner-Walker"}
    assert flow.network.killed == ["actor-0"]
    assert flow.coordinator.shutdown.failure is None
    assert f"actor-0 did not stop within {limit_s:.0f} s" in caplog.text
    assert "The checkpoint lacks emitted@actor-0: a resumed run starts these stages from scratch." in caplog.text


@pytest.mark.lengthy
def test_of_several_actors_only_the_one_that_hangs_is_left_behind(caplog):
    stopped = Stopped(hung)
    flow = run_flow(Scenario(WALKER, CAST, replicas=3, hangs_at=((1, 60),)), stopped, fails=True)
    assert stopped.parts == {"trainer@learner-Walker", "emitted@actor-0", "emitted@actor-2"}
    assert flow.network.killed == ["actor-1"]
    assert flow.coordinator.shutdown.failure is None


class Stuck(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Awaits for ever what never comes, on its fifth item."""

    def __init__(self) -> None:
        self._items = 0

    async def process(self, item: TrajectoryBatch) -> AsyncIterator[TrajectoryBatch]:
        self._items += 1
        if self._items == 5:
            Flow.current.hung.set()
            await asyncio.Event().wait()
        yield item


class StuckInMain(Scenario):
    def config(self) -> RunConfig:
        plain = super().config().to_plain()
        plain["pipeline"]["stages"].append({"use": f"{__name__}:Stuck", "host": "main"})
        return RunConfig.from_plain(plain)


@pytest.mark.lengthy
def test_a_hanging_stage_in_main_does_not_prevent_the_last_checkpoint_or_the_end(caplog):
    stopped = Stopped(hung)
    flow = run_flow(StuckInMain(WALKER, CAST), stopped, fails=True)
    assert stopped.took_s <= GRACE_S / 6 + 3.0
    assert stopped.parts == {"trainer@learner-Walker", "emitted@actor-0", "Stuck-Walker@main"}
    assert flow.coordinator.shutdown.failure is None
    assert "stage Stuck-Walker did not end within 10 s; cancelling it." in caplog.text


def test_the_last_checkpoint_does_not_wait_for_barriers_when_the_last_actor_died(caplog):
    stopped = Stopped(dies)
    flow = run_flow(Scenario(WALKER, CAST), stopped)
    assert stopped.took_s < 1.0
    assert flow.coordinator.shutdown.failure is None
    assert "The process of actor-0 ended with status 1 as the run ended." in caplog.text


def test_a_checkpoint_in_progress_is_followed_by_the_last_one():
    announced = asyncio.Event()

    async def under_way(flow: Flow) -> None:
        flow.network.sent = lambda message: announced.set() if isinstance(message, BeginCheckpoint) else None
        await announced.wait()

    flow = run_flow(Scenario(WALKER, CAST, checkpoint_interval=40, slowness_s=(1e-2,)), Stopped(under_way))
    assert flow.coordinator.checkpointing.newest == 1
    assert not flow.coordinator.checkpointing.busy
