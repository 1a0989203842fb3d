"""What self-play costs an actor: its steps per second with it and without it, 64 games of the built-in game.

    python benchmarks/self_play_cost.py [--games 64] [--seconds 30]
    python benchmarks/self_play_cost.py --set behaviors.Volley.self_play.swap_steps=5000
    python benchmarks/self_play_cost.py --policies 1 2 4 8 16    # only what one decision of so many costs

Both ways an actor's tick is the same: two policies decide, the agent processor collects, all games are stepped. With
self-play the opponents change as often as in config/examples/volley.yaml, each game plays on with whom it began until
another team's turn begins them all anew, and everything that main does for it (judging, rating, snapshots, swaps) is
counted as the actor's too, though it runs in another process. Stretches of both take turns, and the median of their
ratios is told: a busy machine disturbs both. CPU time. The bar: less than 15 %.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headrace.config import load_config
from headrace.queues.messages import Matchup, TrajectoryBatch
from headrace.stages.agent import AgentProcessor
from headrace.stages.environment.deciding import PlayerRows, decide_rows
from headrace.stages.environment.policy_mapping import MappedPlayer, PolicyMappings, no_behavior
from headrace.stages.environment.stage import EnvironmentStage
from headrace.stages.games.volley import VolleyGroup
from headrace.stages.ghost.controller import GhostController
from headrace.stages.ghost.stage import GhostStage
from headrace.stages.policy import design_of, make_policy
from headrace.stages.stage import StageContext
from headrace.stages.trainer import TrainerContext
from headrace.stages.trainer.ppo import PPOTrainer

EXAMPLE = Path(__file__).resolve().parents[1] / "config/examples/volley.yaml"
BEHAVIOR = "Volley"
BAR = 0.15
TICKS = 400
"""Ticks of a stretch."""


class Side:
    """One of the two ways: an actor, and what stands behind it in place of a trainer.

    Args:
        games: how many are played at once.
        self_play: whether the behaviour has it.
        changes: keys of the example, and their values.
    """

    def __init__(self, games: int, self_play: bool, changes: Sequence[str] = ()) -> None:
        config = load_config(EXAMPLE, changes)
        settings = config.behavior_settings(BEHAVIOR)
        assert settings.self_play is not None, "that's what the example is for"
        assert config.environment is not None
        has: Callable[[str], bool] = (lambda name: True) if self_play else no_behavior
        self._mappings = PolicyMappings(lambda spec: make_policy(design_of(spec, settings)), has)
        options = config.environment.options
        self._environment = EnvironmentStage(lambda: VolleyGroup(games, **options), self._mappings)
        self._processor = AgentProcessor({BEHAVIOR: settings.time_horizon}, source=0, min_rows=1024)
        self._environment.start(StageContext("environment"))
        self._processor.start(StageContext("agent_processor"))
        asyncio.run(self._environment.reset(1))
        self._ids = list(self._environment.specs)
        self.spec = spec = self._environment.specs[self._ids[0]]
        self._settings = settings
        self._policy = replace(PPOTrainer(TrainerContext(BEHAVIOR, settings, spec, seed=3)).policy(), version=0, step=0)
        self._every = settings.hyperparameters.buffer_size
        self._learned = 0
        self._ghosts: GhostStage | None = None
        self.decided = self.ticks = 0
        """How many policies have decided, in how many ticks."""
        if self_play:
            self._controller = GhostController(np.random.default_rng(1))
            self._controller.add_history(BEHAVIOR, settings.self_play)
            for behavior_id in self._ids:
                self._controller.add_behavior(behavior_id)
            self._ghosts = GhostStage(self._controller, self._assign)
            self._ghosts.start(StageContext("ghost"))
        self._publish()
        self._turn = self._mappings.turns

    def seconds_per_tick(self) -> float:
        """CPU seconds per tick over the next stretch."""
        return asyncio.run(self._play()) / TICKS

    def policies(self, count: int) -> list[MappedPlayer]:
        """So many policies, of equal weights."""
        made = [make_policy(design_of(self.spec, self._settings)) for _ in range(count)]
        for policy in made:
            policy.load(self._policy)
        return [MappedPlayer(policy) for policy in made]

    @property
    def changes(self) -> int:
        """How often who plays whom has changed."""
        return self._controller.generation

    async def _play(self) -> float:
        began = time.process_time()
        for _ in range(TICKS):
            for step in self._environment.decide():
                for batch in self._processor.process(step):
                    self._take(batch)
            self.ticks += 1
            if self.ticks % 50 == 0:
                self.decided += 50 * len({id(game.players[i]) for game in self._mappings.games for i in self._ids})
            await self._environment.advance()
            if self._mappings.turns != self._turn:
                await self._begin_anew()
        return time.process_time() - began

    async def _begin_anew(self) -> None:
        """It is another team's turn to learn: all games are, as an actor has it."""
        self._turn = self._mappings.turns
        for batch in self._processor.close_all(truncated=True):
            self._take(batch)
        await self._environment.reset(1 + self._turn)

    def _take(self, batch: TrajectoryBatch) -> None:
        kept = [batch] if self._ghosts is None else self._ghosts.process(batch)
        self._learned += sum(one.num_rows for one in kept)
        while self._learned >= self._every:
            self._learned -= self._every
            self._policy = replace(self._policy, version=self._policy.version + 1, step=self._policy.step + self._every)
            self._publish()

    def _publish(self) -> None:
        if self._ghosts is None:
            for behavior_id in self._ids:
                self._environment.update(replace(self._policy, behavior_id=behavior_id))
            return
        updates, matchup = self._controller.receive_policy(self._policy)
        for update in updates:
            self._environment.update(update)
        if matchup is not None:
            self._assign(matchup)

    def _assign(self, matchup: Matchup) -> None:
        for update in matchup.policies:
            self._environment.update(update)
        self._mappings.assign(matchup.assignment)


def decision_cost(policies: int, agents: int) -> float:
    """Median CPU seconds of one decision for so many agents of Volley, shared out at random among so many policies."""
    side = Side(agents, self_play=False)
    made, random = side.policies(policies), np.random.default_rng(1)
    owners = random.integers(0, policies, agents)
    players: PlayerRows = [(player, np.flatnonzero(owners == i)) for i, player in enumerate(made)]
    seen = tuple(random.normal(size=(agents, *o.shape)).astype(o.dtype) for o in side.spec.observations)
    seconds, turns = [], 100
    for _ in range(50):
        began = time.process_time()
        for _ in range(turns):
            decide_rows(players, agents, seen, None, random, False, [None] * policies)
        seconds.append((time.process_time() - began) / turns)
    return median(seconds)


def main() -> None:
    """Measure in turns and print both, and what self-play costs; fails if it is more than the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0, help="to measure for")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="changes")
    parser.add_argument("--policies", type=int, nargs="+", default=[], help="only measure decisions of so many")
    asked = parser.parse_args()
    for count in asked.policies:
        print(
            f"{count:3} policies, {asked.games} agents: {1e6 * decision_cost(count, asked.games):6.1f} µs per decision"
        )
    if asked.policies:
        return
    plain, playing = (Side(asked.games, self_play, asked.changes) for self_play in (False, True))
    _ = plain.seconds_per_tick(), playing.seconds_per_tick()  # buffers grow, snapshots are made, games come out of step
    pairs: list[tuple[float, float]] = []
    began = time.perf_counter()
    while time.perf_counter() - began < asked.seconds or len(pairs) < 3:
        pairs.append((plain.seconds_per_tick(), playing.seconds_per_tick()))
    for name, seconds in zip(("without self-play", "with self-play"), zip(*pairs, strict=True), strict=True):
        tick = median(seconds)
        print(f"{name:18} {1000 * tick:7.3f} ms per tick, {2 * asked.games / tick:10,.0f} agent steps/s")
    # Of the steps/s: 1 - (steps/s with it) / (steps/s without it).
    cost = 1 - median(without / with_it for without, with_it in pairs)
    print(f"self-play costs {cost:.1%} of the steps/s ({len(pairs)} pairs of {TICKS} ticks; bar: {BAR:.0%})")
    print(
        f"it changed opponents {playing.changes} times; {playing.decided / playing.ticks:.1f} policies decided per tick"
    )
    raise SystemExit(cost >= BAR)


if __name__ == "__main__":
    main()
