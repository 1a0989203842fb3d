"""A run from Python as scripts and notebooks have it: dicts, callbacks, a stop, criteria and limits that end it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from run_configs import INLINE, cartpole, changed
from run_folders import read_whole_checkpoint

from headrace import CheckpointWritten, RunOptions, RunResult, StopRequest, SummaryWritten, run, run_async
from headrace.pipeline.common.errors import RunError, RunFailed


def here(folder: Path, run_id: str = "run", **changes: Any) -> dict[str, Any]:
    """A tiny run as data, in one event loop."""
    plain = changed(cartpole(**changes), INLINE)
    return {**plain, "checkpoint_settings": {"results_dir": folder, "run_id": run_id}}


def test_a_dict_is_a_configuration_and_callbacks_receive_summaries_and_checkpoints(tmp_path):
    summaries: list[SummaryWritten] = []
    checkpoints: list[CheckpointWritten] = []
    result = run(here(tmp_path), on_summary=summaries.append, on_checkpoint=checkpoints.append)
    assert result.ended_by == ""
    assert [told.step for told in summaries][:3] == [1000, 2000, 3000]
    assert all(told.behavior == "CartPole" and told.mean_reward for told in summaries[:3])
    assert [told.number for told in checkpoints] == [0, 1, 2]
    assert checkpoints[-1].steps == {"CartPole": result.behaviors["CartPole"].step}
    assert (checkpoints[-1].folder / "2").is_dir() or any(checkpoints[-1].folder.iterdir())


def test_the_runs_log_is_written_although_logging_is_not_configured(tmp_path):
    logger = logging.getLogger("headrace")
    level, handlers = logger.level, logger.handlers[:]
    logger.setLevel(logging.NOTSET)
    logger.handlers[:] = []
    try:
        result = run(here(tmp_path))
        assert (logger.level, logger.handlers) == (logging.NOTSET, [])
    finally:
        logger.setLevel(level)
        logger.handlers[:] = handlers
    said = (result.folder / "run_logs" / "run.log").read_text(encoding="utf-8")
    for words in ("PyTorch", "Connected new brain: CartPole", "Step: 1000. Time Elapsed", "Hyperparameters for"):
        assert words in said, words


async def test_run_within_an_event_loop_names_run_async(tmp_path):
    with pytest.raises(RunError, match=r"In a notebook write `await run_async\(…\)`"):
        run(here(tmp_path))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("function", [run, run_async])
def test_editors_see_the_options_as_keywords(function):
    keywords = [*inspect.signature(function).parameters]
    assert keywords == [
        "config",
        "options",
        *(f.name for f in fields(RunOptions) if f.name not in ("on_start", "watched")),
    ]


def test_an_unknown_argument_of_run_is_named(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_sumary'"):
        run(here(tmp_path), on_sumary=print)  # type: ignore[call-arg]


def test_a_callback_that_raises_ends_the_run_by_its_name_and_a_checkpoint_stays(tmp_path):
    def broken(told: object) -> None:
        raise ZeroDivisionError("in my callback")

    with pytest.raises(RunFailed, match="^on_summary: ZeroDivisionError: in my callback") as failed:
        run(here(tmp_path, behaviors__CartPole__max_steps=10**7), on_summary=broken)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert failed.value.stage == "on_summary"
    assert "--resume" in str(failed.value)
    read_whole_checkpoint(tmp_path / "run")


def test_another_thread_may_stop_the_run(tmp_path):
    stop, seen = StopRequest(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: seen.wait() and stop.set())  # type: ignore[func-returns-value]
        result = run(
            here(tmp_path, behaviors__CartPole__max_steps=10**7), stop=stop, on_summary=lambda told: seen.set()
        )
    assert result.ended_by == "stop"


def test_a_stop_request_that_is_already_set_stops_a_run_immediately(tmp_path):
    stop = StopRequest()
    stop.set()
    assert run(here(tmp_path, behaviors__CartPole__max_steps=10**7), stop=stop).ended_by == "stop"


def test_two_runs_at_once_in_one_event_loop_and_in_two_threads(tmp_path):
    async def both() -> list[RunResult]:
        return [*await asyncio.gather(run_async(here(tmp_path, "a")), run_async(here(tmp_path, "b")))]

    results = asyncio.run(both())
    with ThreadPoolExecutor(2) as pool:
        results += pool.map(lambda name: run(here(tmp_path, name)), ("c", "d"))
    assert [result.run_id for result in results] == ["a", "b", "c", "d"]
    assert all(result.behaviors["CartPole"].step >= 3000 for result in results)


# Criteria. -----------------------------------------------------------------------------------------------------------


def test_a_mean_reward_that_is_reached_ends_the_learning(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    stop_when = {"mean_reward": 15, "over": 20}
    plain = here(tmp_path, behaviors__CartPole__max_steps=10**7, behaviors__CartPole__stop_when=stop_when)
    result = run(plain)
    behavior = result.behaviors["CartPole"]
    assert "stop_when.mean_reward" in behavior.ended_by
    assert (result.ended_by, result.interrupted) == ("", False)
    assert behavior.step < 10**5
    assert any("CartPole stops at step" in record.getMessage() for record in caplog.records)
    read_whole_checkpoint(result.folder)
    plain["checkpoint_settings"]["resume"] = True
    again = run(plain).behaviors["CartPole"]
    assert "stop_when.mean_reward" in again.ended_by
    assert again.version == behavior.version


def test_a_run_ends_with_a_checkpoint_at_max_wall_time(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    plain = here(tmp_path, behaviors__CartPole__max_steps=10**7, pipeline__max_wall_time_s=0.5)
    result = run(plain)
    assert (result.ended_by, result.interrupted) == ("max_wall_time_s", True)
    assert any("pipeline.max_wall_time_s" in record.getMessage() for record in caplog.records)
    step = result.behaviors["CartPole"].step
    plain["checkpoint_settings"]["resume"] = True
    assert run(plain).behaviors["CartPole"].step > step


async def slept() -> None:
    await asyncio.sleep(0)


class Nested(gymnasium.Wrapper):
    """A wrapper that runs coroutines in each call, in ways that users of clients and browsers do."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.loop = asyncio.new_event_loop()
        asyncio.run(slept())

    def reset(self, **options: Any) -> Any:
        asyncio.run(slept())
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.loop.run_until_complete(slept())
        return super().step(action)

    def close(self) -> None:
        self.loop.run_until_complete(slept())
        self.loop.close()


def test_environments_wrappers_and_callbacks_may_run_event_loops(tmp_path):
    told: list[object] = []

    def note(summary: SummaryWritten) -> None:
        told.append(asyncio.run(asyncio.sleep(0, summary.step)))

    plain = here(tmp_path, behaviors__CartPole__max_steps=1000, behaviors__CartPole__summary_freq=500)
    plain["environment"] = {"num_envs": 2, "behavior": "CartPole"}
    run(plain, environment=lambda: Nested(gymnasium.make("CartPole-v1")), on_summary=note)
    assert told[:2] == [500, 1000]
