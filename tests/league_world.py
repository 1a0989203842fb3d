"""A league in main, without a run: its learners' policies and games come from the test."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from league_fakes import games

from headrace.config import RunConfig
from headrace.pipeline.parts.league import LeaguePart
from headrace.queues.messages import Columns, PolicyUpdate
from headrace.stages.league.matchmaking import OWN

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

    def __init__(self, folder: Path, saved: Any = None, learners: object = LEARNERS, **league: object) -> None:
        self.saved: dict[int, Any] = {}
        self.told: dict[str, list[Any]] = {FIRST: [], OTHER: []}
        config = _config(json.dumps({"learners": learners, **league}))
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
            broadcaster=SimpleNamespace(send_policy=lambda update, to_actors: None),
            tasks=SimpleNamespace(start=lambda work: asyncio.get_running_loop().create_task(work)),
            flow=SimpleNamespace(ledger=SimpleNamespace(pause_behaviors=lambda names: None)),
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


@functools.cache  # properties make many worlds
def _config(league: str) -> RunConfig:
    return RunConfig.from_plain({"behaviors": {"Duel": {"league": json.loads(league)}}})


def played(count: int, returns: float = 1.0) -> Columns:
    """Games of a learner against member 0, every second of which it wins."""
    return games(*((OWN, 0, float(number % 2)) for number in range(count)), returns=returns)
