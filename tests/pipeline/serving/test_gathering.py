"""Calls that arrive one after another go on together."""

from __future__ import annotations

import asyncio

from headrace.pipeline.serving.gathering import MOST_S, QUIET_TURNS, Gathering


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_calls_wait_for_those_that_arrive_meanwhile_and_for_no_others():
    gathering, passed, arriving = Gathering(), [], []

    async def call(number: int) -> None:
        gathering.arrived += 1
        await gathering.wait()
        passed.append(number)

    for number in range(5):
        arriving.append(asyncio.create_task(call(number)))
        await turns(QUIET_TURNS - 2)
        assert not passed
    arriving[1].cancel()
    await turns(QUIET_TURNS + 1)
    assert passed == [0, 2, 3, 4]
    await call(5)
    assert passed == [0, 2, 3, 4, 5]


async def test_calls_go_on_though_others_never_cease_to_arrive():
    gathering, loop = Gathering(), asyncio.get_running_loop()
    waiting = asyncio.create_task(gathering.wait())
    end = loop.time() + 10 * MOST_S
    while not waiting.done() and loop.time() < end:
        gathering.arrived += 1
        await asyncio.sleep(0)
    assert waiting.done()
