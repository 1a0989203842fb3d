"""How long an answer may take: the program's own time alone."""

from __future__ import annotations

import asyncio

import pytest
from virtual_time import VirtualTimeLoop

from headrace.stages.environments.programs.answer_time import AnswerTime

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


async def test_an_answer_that_came_while_the_event_loop_was_held_is_taken():
    answer = asyncio.get_running_loop().create_future()
    held(60.0, lambda: answer.set_result(b"step"))
    async with AnswerTime(LIMIT_S):
        assert await answer == b"step"


async def test_a_plain_timeout_would_lose_it():
    answer = asyncio.get_running_loop().create_future()
    held(60.0, lambda: answer.set_result(b"step"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            await answer


@pytest.mark.parametrize(
    ("hold_s", "until_s"), [(0.0, 10.0), (9.0, 10.0), (10.5, 10.5), (14.0, 18.0), (60.0, 70.0)], ids=str
)
async def test_what_was_missed_is_waited_for_anew_but_no_longer_than_the_limit(hold_s, until_s):
    loop = asyncio.get_running_loop()
    began = loop.time()
    held(hold_s)
    with pytest.raises(TimeoutError):
        async with AnswerTime(LIMIT_S):
            await loop.create_future()
    assert loop.time() - began == pytest.approx(until_s)


async def test_one_who_is_cancelled_is_cancelled():
    async def wait():
        async with AnswerTime(LIMIT_S):
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(wait())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
