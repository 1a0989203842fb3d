"""A game is tested by random actions: what breaks the protocol fails, and what nothing can be learned from is noted."""

from __future__ import annotations

from headrace.stages.environments.engines.errors import GameBroken, GameEnded
from headrace.stages.environments.engines.open_protocol.conformance import check_game
from headrace.stages.environments.engines.open_protocol.messages import read_hello

SEEN = [{"name": "seen", "shape": [1]}]


class ScriptedGame:
    """A connection whose game answers each request by the next part of a script, the last one again and again.

    Args:
        script: parts of states: rows of deciding and ended agents.
    """

    pid = None

    def __init__(self, *script):
        self._script = [*script]
        self._requests = 0

    async def start(self):
        ball = {"observations": SEEN, "actions": {"discrete": [2]}}
        self.hello = read_hello({"type": "hello", "protocol": 1, "behaviors": {"Ball": ball}})

    async def request_reset(self, parameters, seed=None):
        self._requests = 0
        return await self.request_step({}, parameters)

    async def request_step(self, actions, parameters=None):
        self._requests += 1
        part = self._script[min(self._requests, len(self._script)) - 1]
        if isinstance(part, Exception):
            raise part
        rows = {kind: self._columns(ids) for kind, ids in part.items()}
        return {"type": "state", "number": self._requests, "agents": {"Ball": rows}, "statistics": {"Goals": 1}}

    async def refuse(self, what):
        return GameBroken(f"the game {what}.")

    async def close(self, patience_s=None):
        pass

    def _columns(self, ids):
        return {"ids": ids, "observations": [[[float(self._requests)] for _ in ids]], "rewards": [1] * len(ids)}


async def checked(game, steps=300):
    """The report's lines, each with its kind."""
    return [f"{line.kind} {line.text}" async for line in check_game(game, steps)]


def noted(lines):
    return [line for line in lines if not line.startswith("ok")]


async def test_a_correct_game_passes_with_a_summary():
    asking, ending = {"deciding": [1, 2]}, {"deciding": [1, 2], "ended": [2]}
    lines = await checked(ScriptedGame(*[asking, asking, ending] * 400))
    assert noted(lines) == []
    assert "ok answers a reset: 2 agents request a decision" in lines
    assert (
        "ok Ball: 602 decisions, 100 episodes of 3.0 decisions (0 truncated), mean return 2.990 with random actions"
        in lines
    )
    assert "ok sends the statistics Goals" in lines


async def test_an_agent_that_ends_without_having_begun_fails():
    (line,) = noted(await checked(ScriptedGame({"deciding": [1]}, {"ended": [7]})))
    assert line.startswith("FAIL the game ended agent 7 of Ball, which has not requested a decision")
    (line,) = noted(await checked(ScriptedGame({"deciding": [1]}, {"ended": [1]}, {"ended": [1]})))
    assert line.startswith("FAIL the game ended agent 1 of Ball")


async def test_agents_that_disappear_are_noted():
    lines = noted(await checked(ScriptedGame({"deciding": [1, 2]}, {"deciding": [1]})))
    assert (
        "note Ball: these agents neither requested a decision nor ended for over 200 states: 2; an agent must end "
        "before it leaves" in lines
    )


async def test_a_game_without_further_requests_is_noted():
    lines = noted(await checked(ScriptedGame({"deciding": [1]}, {"ended": [1]}, {})))
    assert any(line.startswith("note in 300 of 300 states, no agent requested a decision") for line in lines)


async def test_a_game_that_ends_normally_does_not_fail():
    lines = await checked(ScriptedGame({"deciding": [1]}, GameEnded("Game 0 has ended: the player left")))
    assert noted(lines) == ["note Game 0 has ended: the player left; the tests after that did not run"]
