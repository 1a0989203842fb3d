"""Main's side of a league: policies are written in a thread, in order, and no reset is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.config import RunConfig
from headrace.pipeline.control.messages import BeginAnew
from headrace.pipeline.parts.league.main import LeaguePart
from headrace.queues.messages import PolicyUpdate

LEARNERS = {
    "main": {"matches": [{"match": "self"}], "freeze": {"at_most": 100}},
    "exploiter": {
        "matches": [{"match": "newest"}],
        "freeze": {"at_most": 100, "first": False},
        "reset": {"probability": 1.0},
    },
}
FIRST, OTHER = "Duel.main", "Duel.exploiter"


class World:
    """A run as a league sees it, with its learners' controls."""

    def __init__(self, folder: Path, saved: dict[str, Any] | None = None) -> None:
        self.saved: dict[int, Any] = {}
        self.told: dict[str, list[Any]] = {FIRST: [], OTHER: []}
        config = RunConfig.from_plain({"behaviors": {"Duel": {"league": {"learners": LEARNERS}}}})
        stages = SimpleNamespace(
            saved_state=lambda name: saved,
            save_part=lambda name, number, state: self.saved.update({number: state}),
            hooks=lambda stage: SimpleNamespace(return_credits=None),
        )
        controls = {
            name: SimpleNamespace(learner=SimpleNamespace(control=SimpleNamespace(send=told.append)))
            for name, told in self.told.items()
        }
        self.run: Any = SimpleNamespace(
            plan=SimpleNamespace(config=config, folder=SimpleNamespace(path=folder), seed=0),
            stages=stages,
            behaviors=controls,
            launcher=SimpleNamespace(actors={}),
            broadcaster=SimpleNamespace(send_to_actors=lambda update: None),
            tasks=SimpleNamespace(start=lambda work: asyncio.get_running_loop().create_task(work)),
        )
        self.part = LeaguePart(self.run)
        for name in (FIRST, OTHER):
            self.part.add(name)

    def policy(self, behavior: str, step: int) -> None:
        """A learner has a policy, whose version is its step and whose weights are it, too."""
        weights = np.full(3, step, np.float32)
        self.part.policy_made(behavior, PolicyUpdate(behavior, step, weights, (("w", (3,)),), step))

    @property
    def members(self) -> list[tuple[str, int]]:
        return [(member.learner, member.step) for member in self.part.league.pool.members]

    def checkpoint(self, number: int) -> None:
        """A barrier has passed all learners' routes."""
        self.part.checkpoint_begins()
        for name in (FIRST, OTHER):
            self.part.shared.hooks("league", name).save_part("league", number, {})


@pytest.fixture
def slow_disk(monkeypatch):
    """Files are only written once this is set."""
    written, replace = threading.Event(), os.replace

    def wait_and_replace(*paths):
        written.wait(20)
        replace(*paths)

    monkeypatch.setattr(os, "replace", wait_and_replace)
    yield written
    written.set()


async def test_policies_are_written_in_order_while_main_goes_on_and_a_checkpoint_waits_for_them(tmp_path, slow_disk):
    world = World(tmp_path)
    world.policy(FIRST, 0)
    world.policy(OTHER, 0)
    world.policy(FIRST, 50)
    world.policy(OTHER, 100)
    assert world.members == []
    world.checkpoint(1)
    world.policy(OTHER, 120)
    assert world.saved == {}
    slow_disk.set()
    await world.part.settle()
    assert world.members == [("main", 0), ("exploiter", 100)]
    (state,) = world.saved.values()
    assert [each["step"] for each in state["Duel"]["members"]] == [0, 100]
    assert world.told[OTHER] == [BeginAnew(1, None)]
    world.checkpoint(2)
    assert sorted(world.saved) == [1, 2], "nothing waits any more"


async def test_a_learner_that_is_started_again_hears_of_its_reset_whatever_policies_came_meanwhile(tmp_path):
    world = World(tmp_path)
    for behavior, step in ((FIRST, 0), (OTHER, 0), (OTHER, 100)):
        world.policy(behavior, step)
        await world.part.settle()
    world.policy(OTHER, 110)  # of the trainer before, or of a lost learner's successor
    world.part.learner_ready(OTHER)
    world.part.learner_ready(FIRST)
    assert world.told == {FIRST: [], OTHER: [BeginAnew(1, None)] * 2}
    world.checkpoint(1)
    resumed = World(tmp_path, world.saved[1])
    resumed.part.learner_ready(OTHER)
    assert resumed.told[OTHER] == [BeginAnew(1, None)]
    resumed.policy(OTHER, 110)
    resumed.policy(OTHER, 230)
    await resumed.part.settle()
    assert resumed.told[OTHER][1:] == [BeginAnew(2, None)]
