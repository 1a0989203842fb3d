"""The actor's side of central inference: one request at a time, and an answer to that or none."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_time import until_blocked

from headrace.pipeline.parts.central_inference import CentralActor
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import DecisionAnswer, PolicyAnswer, PolicyQuestion
from headrace.stages.actor.remote_policy import NoDecisionError

pytestmark = pytest.mark.virtual_time

ASKED = (PolicyQuestion("Ball", -1, 0, False, (), {}),)


class Rig:
    def __init__(self, source=3):
        self.requests = AgentManagerQueue("requests", 1, "replace_oldest")
        self.answers = AgentManagerQueue("answers", 4)
        host: Any = SimpleNamespace(config=None, plan=SimpleNamespace(source=source, folder=None))
        request: Any = None
        self.decisions = CentralActor(host, request)
        self.decisions.open_sender(self.requests)

    async def __aenter__(self):
        self.following = asyncio.create_task(self.decisions.follow(self.answers))
        await until_blocked()
        return self

    async def __aexit__(self, *_):
        self.following.cancel()
        await asyncio.wait([self.following])

    async def ask(self):
        asking = asyncio.create_task(self.decisions.ask(ASKED))
        await until_blocked()
        return asking


async def test_the_answer_to_its_request_is_taken_and_no_other():
    async with Rig() as rig:
        asking = await rig.ask()
        request = rig.requests.get_nowait()
        for number in (request.number - 1, request.number - 2**40, request.number):
            assert not asking.done()
            await rig.answers.put(DecisionAnswer(number, (PolicyAnswer(number % 1000, {}),)))
            await until_blocked()
        (answer,) = await asking
        assert answer.version == request.number % 1000


async def test_an_abandoned_request_is_repeated_under_another_number():
    async with Rig() as rig:
        asking = await rig.ask()
        rig.decisions.give_up()
        with pytest.raises(NoDecisionError):
            await asking
        first = rig.requests.get_nowait().number
        again = await rig.ask()
        second = rig.requests.get_nowait().number
        assert second > first
        await rig.answers.put(DecisionAnswer(first, ()))
        await until_blocked()
        assert not again.done()
        await rig.answers.put(DecisionAnswer(second, ()))
        assert await again == ()


async def test_requests_fail_at_once_when_the_answer_queue_is_closed():
    async with Rig() as rig:
        asking = await rig.ask()
        rig.answers.close()
        with pytest.raises(NoDecisionError):
            await asking
        with pytest.raises(NoDecisionError):
            await rig.decisions.ask(ASKED)


async def test_a_request_fails_when_the_request_queue_is_closed():
    async with Rig() as rig:
        rig.requests.close()
        with pytest.raises(NoDecisionError):
            await rig.decisions.ask(ASKED)
