"""User code that runs event loops itself works when a coroutine of Headrace's calls it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.events import _set_running_loop

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.brains import ScriptBrain
from headrace.stages.user_calls import call_user, notify_user, run_alone


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def with_run() -> int:
    return asyncio.run(answer())


def with_own_loop() -> int:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(answer())
    finally:
        loop.close()


@pytest.mark.parametrize("function", [with_run, with_own_loop])
def test_user_code_runs_its_own_loop_and_ours_goes_on(function):
    async def ours() -> int:
        assert call_user(function) == call_user(call_user, function) == 42
        return await answer()

    assert run_alone(ours()) == 42


def test_a_loop_that_user_code_leaves_running_is_there_in_its_next_call_and_only_there():
    left = asyncio.new_event_loop()

    async def ours() -> None:
        here = asyncio.get_running_loop()
        call_user(_set_running_loop, left)  # as Playwright's synchronous interface does
        assert asyncio.get_running_loop() is here
        assert call_user(asyncio.get_running_loop) is left
        call_user(_set_running_loop, None)
        with pytest.raises(RuntimeError, match="no running event loop"):
            call_user(asyncio.get_running_loop)
        assert asyncio.get_running_loop() is here

    run_alone(ours())
    left.close()


def test_a_callback_sees_the_loop_only_if_it_is_the_caller_s():
    seen: list[object] = []

    def note(_: object) -> None:
        seen.append(asyncio.events._get_running_loop())

    async def ours() -> None:
        notify_user(note, 1)

    run_alone(ours())
    asyncio.run(ours())
    assert seen[0] is None
    assert isinstance(seen[1], asyncio.AbstractEventLoop)


def test_a_script_that_plays_may_run_a_loop():
    def play(observations: tuple[np.ndarray, ...]) -> ActionBatch:
        return ActionBatch(np.zeros((1, 0), np.float32), np.full((1, 1), with_run() % 2, np.int32))

    async def ours() -> int:
        brain = ScriptBrain(
            play, BehaviorSpec("B", (ObservationSpec("o", (2,)),), ActionSpec(discrete_branches=(2,))), "play"
        )
        decision = brain.act((np.zeros((1, 2), np.float32),), None, np.random.default_rng(0))
        return int(decision.actions.discrete[0, 0])

    assert run_alone(ours()) == 0


def test_a_loop_that_a_call_leaves_does_not_get_our_generators():
    """Otherwise, its end would close them while they run."""
    hooks = sys.get_asyncgen_hooks()

    async def ours() -> None:
        before = sys.get_asyncgen_hooks()
        call_user(sys.set_asyncgen_hooks, lambda generator: None, lambda generator: None)
        assert sys.get_asyncgen_hooks() == before

    run_alone(ours())
    assert sys.get_asyncgen_hooks() == hooks
