"""Stages of one host: what they report to main, their parts of checkpoints, and how several are joined."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from stream_samples import trajectories

from headrace.pipeline.control import CreditsReturned, PartFailed, PartSaved
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.roles.stages import PlacedStage, StageHost, chain
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.pipeline.run_folder.lock import refuse_writes
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import Barrier
from headrace.stages.loop import StageFailure
from headrace.stages.stage import Stage


class Named(Stage):
    """Passes everything on, under its name in `order`."""

    def __init__(self, name: str, order: list[str]) -> None:
        self._name, self._order = name, order

    def process(self, item):
        self._order.append(self._name)
        yield item

    def state_dict(self):
        return {"name": self._name}


def host_in(folder: Path, sent: list[Any], name: str = "actor-2", replica: int | None = 2) -> StageHost:
    return StageHost(name, folder, 7, replica, StatisticsCollector(0), None, sent.append)


def test_returned_credits_are_reported_as_totals_by_stage_behaviour_and_source(tmp_path):
    sent: list[Any] = []
    give_back = host_in(tmp_path, sent).hooks("Filter").return_credits
    assert give_back is not None
    give_back("Ball", 0, 3)
    give_back("Ball", 0, 4)
    give_back("Ball", 1, 5)
    assert sent == [
        CreditsReturned("Filter@actor-2", "Ball", 0, 3),
        CreditsReturned("Filter@actor-2", "Ball", 0, 7),
        CreditsReturned("Filter@actor-2", "Ball", 1, 5),
    ]


def test_a_part_that_can_not_be_written_is_reported_and_ends_nothing(tmp_path):
    sent: list[Any] = []
    (tmp_path / "checkpoints").write_text("a file in the folder's place", encoding="utf-8")
    host_in(tmp_path, sent).save_part("Filter", 3, {})
    (failed,) = sent
    assert isinstance(failed, PartFailed)
    assert (failed.number, failed.name) == (3, "Filter@actor-2")


async def test_a_chain_runs_its_stages_in_order_and_saves_each_at_a_barrier(tmp_path):
    order: list[str] = []
    sent: list[Any] = []
    receiver, sender = AgentManagerQueue[Any]("in", 4), AgentManagerQueue[Any]("out", 4)
    placed = [PlacedStage(name, Named(name, order)) for name in ("first", "second")]
    for item in (trajectories(), Barrier(0)):
        receiver.put_nowait(item)
    receiver.close()
    await asyncio.gather(*chain(placed, host_in(tmp_path, sent), receiver, sender))
    assert order == ["first", "second"]
    assert [type(item).__name__ async for item in sender] == ["TrajectoryBatch", "Barrier"]
    assert [part.name for part in sent if isinstance(part, PartSaved)] == ["first@actor-2", "second@actor-2"]


class YieldsText(Stage):
    """Yields what is no message."""

    def process(self, item):
        yield "not a batch"


async def test_a_stage_that_yields_no_message_is_named_whatever_takes_it_next(tmp_path):
    receiver, sender = AgentManagerQueue[Any]("in", 4), AgentManagerQueue[Any]("out", 4)
    receiver.put_nowait(trajectories())
    (runner,) = chain([PlacedStage("YieldsText", YieldsText())], host_in(tmp_path, []), receiver, sender)
    with pytest.raises(StageFailure, match="stage YieldsText failed on item 1: .*not a pipeline message: str"):
        await runner


def test_a_part_of_a_checkpoint_is_written_once(tmp_path):
    sent: list[Any] = []
    host = StageHost("learner-Ball", tmp_path, 0, None, StatisticsCollector(0), None, sent.append)
    for number, state in ((3, "first"), (3, "late"), (2, "older"), (4, "next")):
        host.save_part("trainer", number, {"is": state})
    assert [message.number for message in sent] == [3, 4]
    assert host.has_saved("trainer", 4)
    assert not host.has_saved("trainer", 5)


def test_a_host_that_main_has_lost_writes_no_part_after_its_replacement(tmp_path):
    sent: list[Any] = []
    lost, replacement = (
        StageHost("learner-Ball", tmp_path, 0, None, StatisticsCollector(0), None, sent.append, incarnation)
        for incarnation in (5, 6)
    )
    lost.save_part("trainer", 1, {})
    refuse_writes(tmp_path, 5)
    lost.save_part("trainer", 2, {"is": "late"})
    assert [type(message) for message in sent] == [PartSaved, PartFailed]
    assert "main has lost it" in sent[1].reason
    assert not (tmp_path / "checkpoints" / "000002.unfinished").exists()
    replacement.save_part("trainer", 2, {})
    assert isinstance(sent[2], PartSaved)


def test_a_part_is_not_written_into_a_folder_that_is_not_the_run_s_any_more(tmp_path):
    run_folder = tmp_path / "run"
    RunFolder.create(tmp_path, "run").close()
    sent: list[Any] = []
    host = host_in(run_folder, sent)
    host.save_part("trainer", 1, {})
    run_folder.rename(tmp_path / "elsewhere")
    RunFolder.create(tmp_path, "run").close()
    host.save_part("trainer", 2, {})
    assert (type(sent[1]), sent[1].number) == (PartFailed, 2)
    assert "it was removed, moved or replaced" in sent[1].reason
    assert not any((run_folder / "checkpoints").iterdir())
    host.folder.move(tmp_path / "elsewhere")
    host.save_part("trainer", 3, {})
    assert (tmp_path / "elsewhere" / "checkpoints" / "000003.unfinished").is_dir()
