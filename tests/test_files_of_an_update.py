"""How much of Headrace a reader opens to follow one update: the files that PPO, SAC and IMPALA each enter."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from trainer_samples import Reported, experience

import headrace
from headrace.config import load_config
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer import TrainerContext
from headrace.stages.trainer.factory import make_trainer

ROOT = Path(headrace.__file__).resolve().parents[1]
ROOMS = tuple(str(ROOT / name) for name in ("config/", "queues/", "stages/", "pipeline/", "headrace/"))
SPEC = BehaviorSpec("Test", (ObservationSpec("vector", (4,)),), ActionSpec(discrete_branches=(2,)))
EXAMPLES = ("cartpole", "cartpole-sac", "cartpole-impala")
MOST = 15
"""Files of an update."""

SMALL = {"cartpole": ["buffer_size=512"], "cartpole-sac": ["buffer_init_steps=480"]}
"""Hyperparameters that begin to learn after 512 steps, and learn little then."""


class Entered:
    """The product's functions that are called while it counts, by file; in all threads that begin after it."""

    def __init__(self) -> None:
        self.counts = False
        self._met: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.counts and event == "call":
            self._met.add(frame.f_code)

    @property
    def functions(self) -> dict[str, set[str]]:
        """Names by file."""
        found: dict[str, set[str]] = {}
        for code in self._met:
            file = str(Path(code.co_filename).resolve())
            if file.startswith(ROOMS):
                found.setdefault(str(Path(file).relative_to(ROOT)), set()).add(code.co_qualname)
        return found

    def described(self) -> str:
        """Each file with its lines and functions."""
        return "\n".join(
            f"{file} ({len((ROOT / file).read_text(encoding='utf-8').splitlines())} lines): {', '.join(sorted(names))}"
            for file, names in sorted(self.functions.items())
        )


@pytest.fixture
def entered():
    found, before = Entered(), threading.getprofile()
    threading.setprofile(found)
    yield found
    threading.setprofile(before)


@pytest.mark.parametrize("example", EXAMPLES)
def test_one_can_read_an_update_in_a_few_files(example, entered):
    sizes = [f"behaviors.CartPole.hyperparameters.{size}" for size in SMALL.get(example, ())]
    config = load_config(ROOT / "config" / "examples" / f"{example}.yaml", sizes)
    block = config.behaviors["CartPole"]
    trainer = make_trainer(TrainerContext("Test", block, SPEC, statistics=Reported()))
    first = experience(SPEC, [16] * (32 if sizes else 128))  # with what is made once, at the first update
    trainer.add(first)
    trainer.learn()
    second = experience(SPEC, [16]) if trainer.off_policy else first
    before, entered.counts = sys.getprofile(), True
    sys.setprofile(entered)
    trainer.add(second)
    trainer.learn()
    trainer.policy()
    sys.setprofile(before)
    entered.counts = False
    assert len(entered.functions) <= MOST, entered.described()
