"""Self-play under any schedule: policies, rotations, swaps, games that end late, out of order or never; resumes."""

from __future__ import annotations

from typing import Any

import numpy as np
from fakes import policy_update, trajectories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from config import SelfPlaySettings
from queues.messages import Assignment, Matchup
from queues.specs import behavior_team
from stages.ghost.controller import NEWEST, GhostController

TEAMS = ("Ball?team=0", "Ball?team=1", "Ball?team=2")
WAYS = st.sampled_from(["in time", "lost"])


class SelfPlay(RuleBasedStateMachine):
    """The controller beside a model that only knows what was published and what was played."""

    games = Bundle("games")

    @initialize(
        values=st.fixed_dictionaries(
            {
                "save_steps": st.integers(1, 30),
                "team_change": st.integers(1, 60),
                "swap_steps": st.integers(1, 30),
                "window": st.integers(1, 4),
                "play_against_latest_model_ratio": st.sampled_from([0.0, 0.5, 1.0]),
            }
        ),
        seed=st.integers(0, 2**32),
        first=st.sampled_from(TEAMS[:2]),
    )
    def start(self, values: dict[str, Any], seed: int, first: str) -> None:
        self.settings = SelfPlaySettings(**values)
        self.controller = GhostController(self.settings, np.random.default_rng(seed))
        self.published: dict[int, Assignment] = {}
        self.weights: dict[int, float] = {}  # by version
        self.snapshots: dict[int, float] = {}  # by number: the weights that were shown under it
        self.ratings: dict[int, float] = {}
        self.ids: set[str] = set()
        self.rotated_at = 0
        self.step = self.version = 0
        self.join(first)

    # What happens. ---------------------------------------------------------------------------------------------------

    @rule(behavior_id=st.sampled_from(TEAMS))
    def join(self, behavior_id: str) -> None:
        known = behavior_id in self.ids
        matchup = self.controller.add_behavior(behavior_id)
        self.ids.add(behavior_id)
        assert (matchup is None) == (known or not self.weights)
        self.publish(matchup)

    @rule(steps=st.integers(1, 50))
    def learn(self, steps: int) -> None:
        if self.weights:
            self.step, self.version = self.step + steps, self.version + 1
        self.weights[self.version] = float(self.version)
        before = self.controller.learning_team
        updates, matchup = self.controller.take_policy(policy_update("Ball", self.version, self.step))
        assert (len(updates) > 0) != (matchup is not None), "the learner hears of it in one of two ways"
        for update in updates:
            assert behavior_team(update.behavior_id) == before == self.controller.learning_team
            assert (update.version, update.snapshot) == (self.version, NEWEST)
        self.publish(matchup)

    @rule(
        target=games,
        behavior=st.integers(0, 2),
        back=st.integers(0, 3),
        lengths=st.lists(st.integers(1, 9), max_size=3),
    )
    def play(self, behavior: int, back: int, lengths: list[int]) -> Any:
        """A team plays under the newest assignment or, on an actor that has not heard of it yet, an older one."""
        generation = max(0, len(self.published) - back)
        if not generation:
            return None
        assignment = self.published[generation]
        behavior_id = sorted(assignment.policies)[behavior % len(assignment.policies)]
        learns = behavior_team(behavior_id) == assignment.learning_team
        rows = [(generation, assignment.learning_team, assignment.opponent, len(lengths) / 2 % 1.5)] if learns else []
        return trajectories(lengths, behavior_id, generation=generation, learning=learns, games=rows)

    @rule(game=consumes(games), way=WAYS)
    def arrive(self, game: Any, way: str) -> None:
        if game is None or way == "lost":
            return
        self.rate(game)
        keep = self.controller.judge(game)
        learning = game.trajectories["learning"].any()
        generation = max(game.trajectories["generation"], default=0)
        valid = bool(learning) and generation >= self.rotated_at
        assert keep.tolist() == [valid] * game.num_trajectories
        if valid:
            assert behavior_team(game.behavior_id) == self.published[generation].learning_team
            assert behavior_team(game.behavior_id) == self.controller.learning_team, "a ghost would be learned from"
        turned_away = int(game.lengths[~keep].sum())
        if turned_away:
            self.publish(self.controller.count_ghost_steps(turned_away))

    @rule()
    def resume(self) -> None:
        """From its state, with another chance, a controller goes on as if nothing had happened."""
        state = self.controller.state_dict()
        resumed = GhostController(self.settings, np.random.default_rng(99))
        resumed.load_state_dict(state)
        for behavior_id in self.ids:
            assert resumed.add_behavior(behavior_id) is None
        if self.weights:
            updates, matchup = resumed.take_policy(policy_update("Ball", self.version, self.step))
            assert not updates
            assert matchup is not None
            last = self.published[len(self.published)]
            found = matchup.assignment
            assert (found.generation, found.learning_team, found.opponent) == (
                last.generation,
                last.learning_team,
                last.opponent,
            )
            for behavior_id in self.ids:
                if behavior_team(behavior_id) != last.learning_team:
                    assert found.policies[behavior_id] == last.policies[behavior_id]
            assert repr(resumed.state_dict()) == repr(state)
        self.controller = resumed

    # What must hold. -------------------------------------------------------------------------------------------------

    def publish(self, matchup: Matchup | None) -> None:
        if matchup is None:
            return
        assignment = matchup.assignment
        assert assignment.generation == len(self.published) + 1, "generations rise by one"
        last = self.published.get(assignment.generation - 1)
        self.published[assignment.generation] = assignment
        if last is not None and last.learning_team != assignment.learning_team:
            self.rotated_at = assignment.generation
        assert assignment.policies.keys() == {update.behavior_id for update in matchup.policies} == self.ids
        for update in matchup.policies:
            assert (update.snapshot, update.version) == assignment.policies[update.behavior_id]
            assert update.weights[0] == self.weights[update.version], "these are another version's weights"
            if behavior_team(update.behavior_id) == assignment.learning_team:
                assert (update.snapshot, update.version) == (NEWEST, self.version)
            else:
                assert update.snapshot == assignment.opponent
                if update.snapshot == NEWEST:
                    assert update.version == self.version
                else:
                    assert update.version == self.snapshots.setdefault(update.snapshot, update.version)

    def rate(self, game: Any) -> None:
        """Each game counts at most once, against who was met, by Elo's formula."""
        before = {number: self.controller.rating(number) for number in self.numbers()}
        told = self.controller.rate(game.games)
        after = {number: self.controller.rating(number) for number in before}
        moved = {number for number in before if before[number] != after[number]}
        expected: list[float] = []
        if game.games:
            (generation,), (opponent,), (outcome,) = (
                game.games[name].tolist() for name in ("game_generation", "game_opponent", "game_outcome")
            )
            if opponent != NEWEST and generation >= self.rotated_at:
                mine, theirs = before[NEWEST], before[opponent]
                change = self.settings.elo_k * (outcome - 1 / (1 + 10 ** ((theirs - mine) / 400)))
                expected = [mine + change]
                assert abs(after[NEWEST] - mine - change) < 1e-9
                assert abs(after[opponent] - theirs + change) < 1e-9
                assert moved <= {NEWEST, opponent}
        assert told == expected
        if not expected:
            assert not moved

    def numbers(self) -> list[int]:
        return [NEWEST, *range(max((s.number for s in self.controller.snapshots), default=-1) + 1)]

    @invariant()
    def the_window_is_bounded_and_holds_the_newest_snapshots(self) -> None:
        if not hasattr(self, "controller"):
            return
        numbers = [snapshot.number for snapshot in self.controller.snapshots]
        assert len(numbers) <= self.settings.window
        assert numbers == list(range(numbers[-1] + 1))[-len(numbers) :] if numbers else not self.weights
        for snapshot in self.controller.snapshots:
            assert snapshot.update.snapshot == snapshot.number
            assert snapshot.update.weights[0] == self.weights[snapshot.update.version]


TestSelfPlay = SelfPlay.TestCase
TestSelfPlay.settings = settings(max_examples=100, stateful_step_count=40)
