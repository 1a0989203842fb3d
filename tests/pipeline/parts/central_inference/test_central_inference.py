"""Main's part in central inference: nothing that is published is lost, and dead actors are answered to nobody."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import policy_update
from virtual_time import until_blocked

from headrace.config import RunConfig
from headrace.pipeline.control import DecideFor, PolicyKept, Stop
from headrace.pipeline.parts.central_inference import CentralInference
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import DecisionAnswer, DecisionRequest
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

pytestmark = pytest.mark.virtual_time

HOST: Any = None
"""Whose messages they are does not matter here."""

SPEC = BehaviorSpec("Ball", (ObservationSpec("who", (4,)),), ActionSpec(0, (3,)))


class Host:
    """A host whose queues take a second to open."""

    def __init__(self, name):
        self.plan = SimpleNamespace(name=name)
        self.sent = []
        self.control = SimpleNamespace(send=self.sent.append)
        self.queues = {}

    async def receiver(self, name, newest=True):
        await asyncio.sleep(1.0)
        assert name not in self.queues, "it is opened once"
        self.queues[name] = AgentManagerQueue(name, 4, "replace_oldest" if newest else "wait")
        return self.queues[name]

    sender = receiver


class Rig:
    def __init__(self):
        self.host = Host("inference")
        self.tasks = []
        self.words = []
        run: Any = SimpleNamespace(
            plan=SimpleNamespace(config=RunConfig.from_plain({"behaviors": {"Ball": {}}})),
            launcher=SimpleNamespace(ends={}, start=self.start),
            broadcaster=SimpleNamespace(send_policy=lambda update, to_actors: self.words.append(update)),
            running=SimpleNamespace(unended={"inference"}),
            shutdown=SimpleNamespace(begun=True),
            tasks=SimpleNamespace(run=lambda runner: self.tasks.append(asyncio.create_task(runner))),
        )
        self.central = CentralInference(run)

    async def start(self, role: str, name: str) -> Any:
        assert (role, name) == ("inference", "inference")
        return self.host

    async def join(self, actor):
        slot: Any = SimpleNamespace(replica=0, handle=actor)
        await self.central.actor_started(slot)

    async def __aenter__(self):
        await self.central.start()
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_policy_that_is_published_while_its_queue_opens_is_sent_and_the_queue_opens_once():
    async with Rig() as rig:
        published = []
        adding = [asyncio.create_task(rig.central.add_behavior(SPEC, lambda name: published)) for _ in range(2)]
        await asyncio.sleep(0.5)
        rig.central.send(policy_update("Ball", 3))
        published.append(policy_update("Ball", 3))  # as the publisher keeps it
        await asyncio.gather(*adding)
        assert [type(message) for message in rig.host.sent] == [DecideFor]
        assert rig.host.queues["policies/Ball"].get_nowait().version == 3


async def test_word_of_a_policy_has_no_weights_and_is_kept_for_those_that_come_later():
    async with Rig() as rig:
        assert rig.central.newest_for("Ball") == []
        rig.central.receive(HOST, PolicyKept("Ball", 7, 100, 2))
        (word,) = rig.words
        assert (word.version, word.step, word.snapshot, word.layout) == (7, 100, 2, ())
        np.testing.assert_array_equal(word.weights, [])
        assert rig.central.newest_for("Ball") == [word]


async def test_requests_and_answers_pass_and_what_is_meant_for_a_dead_actor_is_dropped():
    async with Rig() as rig:
        first, second = Host("actor-0"), Host("actor-0")
        await rig.join(first)
        await first.queues["requests/actor-0"].put(DecisionRequest(1, ()))
        asked, answered = rig.host.queues["asked/actor-0"], rig.host.queues["answered/actor-0"]
        assert (await asked.get()).number == 1
        await answered.put(DecisionAnswer(1, ()))
        assert (await first.queues["answers/actor-0"].get()).number == 1
        for queue in first.queues.values():  # it dies while its request waits
            queue.close()
        await answered.put(DecisionAnswer(2, ()))
        await until_blocked()
        await rig.join(second)
        await second.queues["requests/actor-0"].put(DecisionRequest(2**40 + 1, ()))
        assert (await asked.get()).number == 2**40 + 1
        await answered.put(DecisionAnswer(2**40 + 1, ()))
        assert (await second.queues["answers/actor-0"].get()).number == 2**40 + 1


async def test_actors_are_notified_when_central_inference_has_ended():
    async with Rig() as rig:
        actor = Host("actor-0")
        await rig.join(actor)
        for queue in rig.host.queues.values():
            queue.close()
        await until_blocked()
        with pytest.raises(QueueClosed):
            await actor.queues["answers/actor-0"].get()
        rig.central.fewer_hosts(at_once=False)
        assert [type(message) for message in rig.host.sent] == [Stop]
