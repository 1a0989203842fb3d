"""Specifications of the batcher, in virtual time: what is decided together, what is dropped, refused and late."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.pipeline.serving.action_request import ActionRequest, ErrorKind, RequestRefused
from headrace.pipeline.serving.service import Batcher, ServingLimits
from headrace.queues.messages import ActionBatch
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.protocol import Decision, Recall


class Doubling:
    """A policy whose action is twice what is observed; it has no answer to 13, and breaks at 99."""

    memory_size = 0

    def __init__(self):
        self.calls = []

    def act(self, observations, masks, random, deterministic=False, recall=None):
        numbers = observations[0]
        self.calls.append((numbers[:, 0].tolist(), deterministic, None if masks is None else masks.tolist()))
        if 13 in numbers:
            raise NotFiniteError("13")
        if 99 in numbers:
            raise ZeroDivisionError("99")
        after = None if recall is None else Recall(recall.memories + numbers, recall.previous_actions)
        return Decision(ActionBatch(2 * numbers, np.zeros((len(numbers), 1), np.int32)), {}, after)


def model_of(policy, quick=True):
    return SimpleNamespace(newest=SimpleNamespace(act=policy.act, is_quick=lambda _: quick, path="Ball.pt"))


@asynccontextmanager
async def batcher(policy, quick=True, **limits):
    made = Batcher(model_of(policy, quick), False, np.random.default_rng(0), ServingLimits(**limits))
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def ask(made, *numbers, recall=None, **more):
    return made.ask(ActionRequest((np.asarray(numbers, np.float32)[:, None],), **more), recall)


async def actions(made, *numbers, **more):
    return (await ask(made, *numbers, **more)).actions.continuous[:, 0].tolist()


@pytest.mark.virtual_time
async def test_requests_that_wait_together_are_one_decision():
    policy = Doubling()
    async with batcher(policy) as made:
        found = await asyncio.gather(actions(made, 1), actions(made, 2, 3), actions(made, 4))
        assert found == [[2], [4, 6], [8]]
        assert await actions(made, 5) == [10]
    assert [call[0] for call in policy.calls] == [[1, 2, 3, 4], [5]]
    assert made.decisions == 2


@pytest.mark.virtual_time
async def test_sampled_and_most_likely_actions_are_separate_decisions():
    policy = Doubling()
    async with batcher(policy) as made:
        wanted = (None, True, False, True)
        found = await asyncio.gather(*(actions(made, n, deterministic=flag) for n, flag in enumerate(wanted)))
        assert found == [[0], [2], [4], [6]]
    assert [call[:2] for call in policy.calls] == [([0, 2], False), ([1, 3], True)]


@pytest.mark.virtual_time
async def test_a_request_without_masks_allows_all_choices_in_a_shared_decision():
    policy = Doubling()
    async with batcher(policy) as made:
        await asyncio.gather(ask(made, 1), ask(made, 2, masks=np.asarray([[True, False]])))
    assert policy.calls == [([1, 2], False, [[True, True], [True, False]])]


@pytest.mark.virtual_time
async def test_memories_stay_with_their_request():
    async with batcher(Doubling()) as made:
        recalls = [Recall(np.full((1, 1), n, np.float32), np.zeros((1, 0), np.float32)) for n in (10, 20)]
        found = await asyncio.gather(*(ask(made, n, recall=each) for n, each in enumerate(recalls)))
    assert [each.recall.memories.tolist() for each in found] == [[[10]], [[21]]]


@pytest.mark.virtual_time
async def test_a_decision_has_a_bound_of_agents_that_one_request_may_exceed_alone():
    policy = Doubling()
    async with batcher(policy, decided_agents=3) as made:
        await asyncio.gather(*(ask(made, *numbers) for numbers in ((1, 2), (3, 4), (5,), (6, 7, 8, 9), (10,))))
    assert [call[0] for call in policy.calls] == [[1, 2], [3, 4, 5], [6, 7, 8, 9], [10]]


@pytest.mark.virtual_time
async def test_a_failing_request_does_not_affect_the_others_in_its_batch(caplog):
    async with batcher(Doubling()) as made:
        found: list[Any] = await asyncio.gather(*(actions(made, n) for n in (1, 13, 99, 2)), return_exceptions=True)
        assert found[0::3] == [[2], [4]]
        assert [each.why for each in found[1:3]] == [ErrorKind.UNFIT, ErrorKind.FAULT]
    assert "Ball.pt could not choose actions: ZeroDivisionError: 99" in caplog.text


@pytest.mark.virtual_time
async def test_a_cancelled_request_is_dropped():
    policy = Doubling()
    async with batcher(policy) as made:
        gone, stays = asyncio.create_task(actions(made, 1)), asyncio.create_task(actions(made, 2))
        asyncio.get_running_loop().call_soon(gone.cancel)
        assert await stays == [4]
        with pytest.raises(asyncio.CancelledError):
            await gone


class Held(Doubling):
    """Decides, in the batcher's thread, when it is let go."""

    def __init__(self):
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def act(self, *arguments):
        self.begun.set()
        self.go.wait()
        return super().act(*arguments)


async def test_requests_that_arrive_during_a_decision_form_the_next_batch():
    policy = Held()
    async with batcher(policy, quick=False) as made:
        first = asyncio.create_task(actions(made, 1))
        await asyncio.to_thread(policy.begun.wait)
        more = [asyncio.create_task(actions(made, n)) for n in (2, 3)]
        await asyncio.sleep(0)
        assert len(made) == 2
        policy.go.set()
        assert await asyncio.gather(first, *more) == [[2], [4], [6]]
    assert [call[0] for call in policy.calls] == [[1], [2, 3]]


async def test_a_client_that_leaves_while_waiting_is_not_decided_for():
    policy = Held()
    async with batcher(policy, quick=False) as made:
        first = asyncio.create_task(actions(made, 1))
        await asyncio.to_thread(policy.begun.wait)
        gone = asyncio.create_task(actions(made, 2))
        await asyncio.sleep(0)
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        stays = asyncio.create_task(actions(made, 3))
        await asyncio.sleep(0)
        policy.go.set()
        assert await asyncio.gather(first, stays) == [[2], [6]]
    assert [call[0] for call in policy.calls] == [[1], [3]]


async def test_a_late_request_is_refused():
    policy = Held()
    async with batcher(policy, quick=False, patience_s=0.01) as made:
        with pytest.raises(RequestRefused, match=r"no decision was made within 0\.01 s") as raised:
            await actions(made, 1)
        assert raised.value.why is ErrorKind.LATE
        policy.go.set()
