"""A call in a daemon thread: whatever it raises is raised where it is awaited, and nobody waits for a call that hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headrace.queues.disks import Disks, current_disks, in_thread
from headrace.stages.errors import describe_error
from headrace.stop_requests import cleaned_up_by


class Odd(BaseException):
    """As a panic of Rust is."""


RAISED = [ValueError("v"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), Odd("odd")]


async def failure(call) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - each is looked at
        await in_thread("a call", call)
    return raised.value


def raising(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize("error", RAISED, ids=repr)
async def test_an_exception_in_a_call_is_raised_where_the_call_is_awaited(error):
    assert await asyncio.wait_for(failure(raising(error)), 20) is error


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
async def test_the_end_of_an_iterator_is_described_by_its_own_name_and_place(kind):
    failed = await asyncio.wait_for(failure(raising(kind("x"))), 20)
    assert describe_error(failed).startswith(f"{kind.__name__}: x (at {__file__}:")


async def test_a_hanging_call_is_abandoned_when_its_awaiter_is_cancelled():
    begins, hangs, cleaned, late = (threading.Event() for _ in range(4))

    def call():
        with cleaned_up_by(cleaned.set):
            begins.set()
            assert hangs.wait(20)
        with cleaned_up_by(late.set):
            pass

    awaited = asyncio.create_task(in_thread("a call", call))
    await asyncio.to_thread(begins.wait, 20)
    (thread,) = (each for each in threading.enumerate() if each.name == "a call")
    assert thread.daemon, "it keeps no process alive"
    awaited.cancel()
    with pytest.raises(asyncio.CancelledError):
        await awaited
    assert await asyncio.to_thread(cleaned.wait, 20)
    hangs.set()
    assert await asyncio.to_thread(late.wait, 20), "what it begins afterwards is cleaned up as well"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_call_in_a_hurry_returns_what_it_can(when):
    begins, goes_on, hurry = threading.Event(), threading.Event(), asyncio.Event()

    def call() -> str:
        with cleaned_up_by(goes_on.set):
            begins.set()
            assert goes_on.wait(20)
        return "half of it"

    if when == "before":
        hurry.set()
    awaited = asyncio.create_task(in_thread("a call", call, hurry=hurry))
    await asyncio.to_thread(begins.wait, 20)
    hurry.set()
    assert await awaited == "half of it"


async def test_only_what_the_thread_itself_has_begun_is_cleaned_up():
    elsewhere = threading.Event()
    with cleaned_up_by(elsewhere.set):
        assert await in_thread("a call", int, "3") == 3
        await asyncio.sleep(0)
    assert not elsewhere.is_set()


async def test_a_call_waits_for_disks_as_the_code_that_awaits_it_does():
    disks = Disks()
    with disks.used():
        assert await in_thread("a call", current_disks) is disks
