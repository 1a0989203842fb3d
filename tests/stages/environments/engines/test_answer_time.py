"""How long an answer may take: the program's own time alone."""

from __future__ import annotations

import asyncio

import pytest
from virtual_time import VirtualTimeLoop

from headrace.stages.environments.engines.game import AnswerTime

pytestmark = pytest.mark.virtual_time
LIMIT_S = 10.0


def held(seconds: float, then=lambda: None) -> None:
    """Hold the event loop, as the import of torch does; what has arrived meanwhile is seen when it goes on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)

    def hold() -> None:
        loop.pass_time(seconds)
        loop.call_soon(then)

    loop.call_soon(hold)


async def test_an_answer_that_arrives_while_the_event_loop_is_blocked_counts():
    answer = asyncio.get_running_loop().create_future()
    held(60.0, lambda: answer.set_result(b"step"))
    async with AnswerTime(LIMIT_S):
        assert await answer == b"step"


@pytest.mark.parametrize(("hold_s", "until_s"), [(0.0, 10.0), (9.0, 10.0), (10.5, 10.5), (14.0, 15.0), (60.0, 61.0)])
async def test_a_blocked_event_loop_extends_the_timeout_by_a_second(hold_s, until_s):
    loop = asyncio.get_running_loop()
    began = loop.time()
    held(hold_s)
    with pytest.raises(TimeoutError):
        async with AnswerTime(LIMIT_S):
            await loop.create_future()
    assert loop.time() - began == pytest.approx(until_s)


async def test_a_hanging_program_times_out_although_the_loop_is_blocked_repeatedly():
    loop = asyncio.get_running_loop()
    began = loop.time()

    def hold_for_ever() -> None:
        held(30.0, hold_for_ever)

    hold_for_ever()
    with pytest.raises(TimeoutError):
        async with AnswerTime(LIMIT_S):
            await loop.create_future()
    assert loop.time() - began < 20 * 30.0
