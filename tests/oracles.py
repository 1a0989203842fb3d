"""Whoever answers for an actor's policies, in the same event loop: a decider behind the real messages."""

from __future__ import annotations

import asyncio

import numpy as np

from headrace.queues import codec
from headrace.queues.messages import DecisionAnswer, DecisionRequest
from headrace.stages.actor.remote_policy import NoDecisionError
from headrace.stages.inference import CentralDecider


class NearOracle:
    """Answers at once, or where `holds` is set when `release` is called; counts what it was asked."""

    def __init__(self, make_policy, actor="actor-0", decider=None, holds=False):
        self.decider = decider or CentralDecider(make_policy, np.random.default_rng(0), 1)
        self.actor = actor
        self.asked = []
        self.holds = holds
        self.lost = False
        self._waiting = None

    async def ask(self, questions):
        if self.lost:
            raise NoDecisionError
        self.asked.append(questions)
        self._waiting = asyncio.get_running_loop().create_future()
        if not self.holds:
            self.release()
        return await self._waiting

    def release(self):
        self.decider.receive(self.actor, passed(DecisionRequest(len(self.asked), self.asked[-1])))
        ((actor, answer),) = self.decider.answer()
        assert actor == self.actor
        assert isinstance(answer, DecisionAnswer)
        self._waiting.set_result(passed(answer).answers)

    def lose(self):
        self.lost = True
        self.give_up()

    def give_up(self):
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(NoDecisionError())


def passed(message):
    """A message as it comes out of another process: its arrays can't be written to."""
    header, arrays = codec.describe(message)
    starts, total = codec.offsets(header)
    buffer = bytearray(total)
    codec.write_arrays(arrays, starts, memoryview(buffer))
    return codec.build(header, codec.read_arrays(header, bytes(buffer)))
