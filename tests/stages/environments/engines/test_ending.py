"""A game that is in the middle of a step hears nothing before it has answered, whatever ends its run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import godot_runs
import numpy as np
import open_runs
import pytest

from headrace.config import RunConfig
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.engines.errors import GameBroken
from headrace.stages.environments.engines.godot.messages import action_message
from headrace.stages.environments.factory import EnvironmentRequest, make_group

STEP_MS = 150


def zeros(spec: BehaviorSpec, count: int) -> ActionBatch:
    """Zeros for so many agents."""
    actions = spec.actions
    return ActionBatch(
        np.zeros((count, actions.continuous_size), np.float32),
        np.zeros((count, len(actions.discrete_branches)), np.int32),
    )


class Godot:
    """One with Godot's addon."""

    log = "Godot-0.log"

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.game = godot_runs.game_of(folder, *arguments)

    async def begin(self) -> None:
        await self.game.start()
        await self.game.request_reset()

    async def step(self) -> None:
        await self.game.request_step(action_message([b'{"press":1}'] * 4))


class Open:
    """One of the open protocol."""

    log = "Game-0.log"

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.game = open_runs.game_of(folder, "--game=reach", *arguments)
        self._ids: list[int] = []

    async def begin(self) -> None:
        await self.game.start()
        self._note(await self.game.request_reset({}))

    async def step(self) -> None:
        chosen = {"ids": self._ids, "continuous": [[0.5]] * len(self._ids)}
        self._note(await self.game.request_step({"Agent": chosen}))

    def _note(self, state) -> None:
        self._ids = state["agents"]["Agent"]["deciding"]["ids"]


async def given_up(step: Coroutine[Any, Any, Any]) -> None:
    """A step that nobody waits for any more, once its requests have left."""
    stepping = asyncio.create_task(step)
    for _ in range(5):
        await asyncio.sleep(0)
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", [Godot, Open])
async def test_a_stepping_game_is_stopped_after_its_answer(kind, tmp_path, caplog):
    played = kind(tmp_path, f"--step_ms={STEP_MS}")
    await played.begin()
    await played.step()
    await given_up(played.step())
    await played.game.close()
    assert "WRONG" not in (tmp_path / played.log).read_text()
    assert not caplog.messages


GROUPS = {
    "godot": lambda folder: {"environment": {"kind": "godot"}, "env_path": str(godot_runs.build_in(folder))},
    "open_protocol": lambda folder: {
        "environment": {"kind": "open_protocol"},
        "env_path": sys.executable,
        "env_args": [str(open_runs.GAME), "--game=reach"],
    },
}


def group_in(folder: Path, kind: str) -> Any:
    """Three games that take a while for a step."""
    env = GROUPS[kind](folder)
    environment = env.pop("environment")
    arguments = [*env.pop("env_args", ()), f"--step_ms={STEP_MS}"]
    config = RunConfig.from_plain(
        {
            "environment": environment,
            "env_settings": {**env, "env_args": arguments, "num_envs": 3, "base_port": 0},
            "behaviors": {"Agent": {"trainer_type": "ppo"}},
        }
    )
    return make_group(EnvironmentRequest(config, run_folder=folder))


def assert_none_was_overtaken(folder: Path) -> None:
    logs = [path.read_text() for path in (folder / "run_logs").glob("*-[012].log")]
    assert len(logs) == 3
    assert not any("WRONG" in log for log in logs)


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", GROUPS)
async def test_a_group_closes_its_stepping_games_after_their_answers(kind, tmp_path):
    group = group_in(tmp_path, kind)
    begun = await group.reset(0)
    actions = {"Agent": zeros(group.behavior_specs["Agent"], len(begun.steps["Agent"].agent_ids))}
    await given_up(group.step(actions))
    await group.close()
    assert_none_was_overtaken(tmp_path)


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", GROUPS)
async def test_a_group_resets_its_stepping_games_after_their_answers(kind, tmp_path):
    group = group_in(tmp_path, kind)
    result = await group.reset(0)
    for _ in range(2):
        count = len(result.steps["Agent"].agent_ids)
        result = await group.step({"Agent": zeros(group.behavior_specs["Agent"], count)})
        result = await group.reset(1)
    await group.close()
    assert_none_was_overtaken(tmp_path)


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", [Godot, Open])
async def test_a_game_that_never_answers_is_killed(kind, tmp_path, caplog):
    played = kind(tmp_path, "--step_ms=3600000")
    await played.begin()
    await given_up(played.step())
    await played.game.close(0.1)
    (said,) = caplog.messages
    assert "did not end within 0.1 s with its answer; killing it" in said
    assert "WRONG" not in (tmp_path / played.log).read_text()


@pytest.mark.parametrize("kind", [Godot, Open])
async def test_a_late_game_is_killed_without_a_message(kind, tmp_path):
    played = kind(tmp_path, "--step_ms=3600000")
    await played.begin()
    played.game.timeout_s = 0.05
    with pytest.raises(GameBroken, match=r"within 0.05 s: it hangs"):
        await played.step()
    assert "WRONG" not in (tmp_path / played.log).read_text()
    assert "refused" not in (tmp_path / played.log).read_text()
    await played.game.close()
