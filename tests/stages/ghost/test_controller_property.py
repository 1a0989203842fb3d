"""Self-play under any schedule: policies, rotations, swaps, trainers that are done, games that end late, out of order or
never, resumes; with one behaviour or several, two teams or more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import policy_update, trajectories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from config import SelfPlaySettings
from queues.messages import Assignment, Matchup
from queues.specs import behavior_name, behavior_team
from stages.ghost.controller import GhostController
from stages.ghost.lineage import NEWEST

CASTS = (
    ("Ball?team=0", "Ball?team=1"),
    ("Ball?team=0", "Ball?team=1", "Ball?team=2"),
    ("Hider?team=0", "Seeker?team=1"),
    ("Keeper?team=0", "Striker?team=0", "Rival?team=1"),
    ("Fox?team=0", "Hen?team=1", "Hen?team=2", "Dog?team=3"),
)
SETTINGS = st.fixed_dictionaries(
    {
        "save_steps": st.integers(1, 30),
        "team_change": st.integers(1, 60),
        "swap_steps": st.integers(1, 30),
        "window": st.integers(1, 4),
        "play_against_latest_model_ratio": st.sampled_from([0.0, 0.5, 1.0]),
    }
)


class SelfPlay(RuleBasedStateMachine):
    """The controller beside a model that only knows what was published and what was played."""

    games = Bundle("games")

    @initialize(cast=st.sampled_from(CASTS), values=st.lists(SETTINGS, min_size=4, max_size=4), seed=st.integers(0, 99))
    def start(self, cast: tuple[str, ...], values: list[dict[str, Any]], seed: int) -> None:
        self.cast = cast
        self.names = list(dict.fromkeys(map(behavior_name, cast)))
        self.settings = dict(zip(self.names, (SelfPlaySettings(**value) for value in values), strict=False))
        self.controller = GhostController(np.random.default_rng(seed))
        for name in self.names:
            self.controller.add_lineage(name, self.settings[name])
        self.published: dict[int, Assignment] = {}
        self.newest: dict[str, tuple[int, int]] = {}  # by name: version, step
        self.snapshots: dict[tuple[str, int], int] = {}  # the version that was shown as this snapshot
        self.done: set[str] = set()
        self.ids: set[str] = set()
        self.rotated_at = 0
        self.rated = 0
        self.join(0)

    # What happens. ---------------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 3))
    def join(self, which: int) -> None:
        behavior_id = self.cast[which % len(self.cast)]
        matchup = self.controller.add_behavior(behavior_id)
        if behavior_id in self.ids or behavior_name(behavior_id) not in self.newest:
            assert matchup is None
        self.ids.add(behavior_id)
        self.publish(matchup)

    @rule(which=st.integers(0, 3), steps=st.integers(1, 50))
    def learn(self, which: int, steps: int) -> None:
        name = self.names[which % len(self.names)]
        if name in self.done or not any(behavior_name(behavior_id) == name for behavior_id in self.ids):
            return
        version, step = self.newest.get(name, (-1, -steps))
        version, step = version + 1, step + steps
        self.newest[name] = version, step
        before = self.controller.learning_team
        updates, matchup = self.controller.take_policy(policy_update(name, version, step))
        assert not (updates and matchup), "learners hear of it in one of two ways"
        for update in updates:
            assert behavior_team(update.behavior_id) == before == self.controller.learning_team
            assert (update.version, update.snapshot) == (version, NEWEST)
        plays = self.published.get(len(self.published), Assignment(0, -1, {})).policies
        learns = any(behavior_name(i) == name and behavior_team(i) == before for i in plays)
        assert bool(updates) or matchup is not None or not learns, "a learner hears of each policy"
        self.publish(matchup)

    @rule(which=st.integers(0, 3))
    def finish(self, which: int) -> None:
        name = self.names[which % len(self.names)]
        if name in self.newest:
            matchup = self.controller.hear_trainer(name, True)
            assert matchup is None or name not in self.done
            self.done.add(name)
            self.publish(matchup)

    @rule(
        target=games,
        which=st.integers(0, 3),
        back=st.integers(0, 3),
        lengths=st.lists(st.integers(1, 9), max_size=3),
    )
    def play(self, which: int, back: int, lengths: list[int]) -> Any:
        """A team plays under the newest assignment or, on an actor that has not heard of it yet, an older one."""
        generation = max(0, len(self.published) - back)
        if not generation:
            return None
        assignment = self.published[generation]
        behavior_id = sorted(assignment.policies)[which % len(assignment.policies)]
        learns = behavior_team(behavior_id) == assignment.learning_team
        rows = [(generation, assignment.learning_team, assignment.opponent, len(lengths) / 2 % 1.5)] if learns else []
        return trajectories(lengths, behavior_id, generation=generation, learning=learns, games=rows)

    @rule(game=consumes(games), way=st.sampled_from(["in time", "lost"]))
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
        lineage = self.controller.lineages[game.behavior]
        before = lineage.ghost_step
        self.publish(self.controller.count(game, keep))
        assert lineage.ghost_step - before == int(game.lengths[~keep].sum())

    @rule()
    def resume(self) -> None:
        """From its state, with another chance, a controller goes on as if nothing had happened."""
        state = self.controller.state_dict()
        resumed = GhostController(np.random.default_rng(99))
        resumed.load_state_dict(state)
        matchups = []
        for name in self.names:
            resumed.add_lineage(name, self.settings[name])
        for behavior_id in self.ids:
            assert resumed.add_behavior(behavior_id) is None
        for name, (version, step) in self.newest.items():
            updates, matchup = resumed.take_policy(policy_update(name, version, step))
            assert not updates
            matchups += [matchup, resumed.hear_trainer(name, name in self.done)]
        assert not any(matchups[:-1]), "nothing is published before all have spoken"
        if self.published:
            last, found = self.published[len(self.published)], matchups[-1].assignment
            assert (found.generation, found.learning_team) == (last.generation, last.learning_team)
            for behavior_id, played in last.policies.items():
                if behavior_team(behavior_id) != last.learning_team:
                    assert found.policies[behavior_id] == played
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
            learners = {behavior_name(i) for i in self.ids if behavior_team(i) == assignment.learning_team}
            assert not learners <= self.done, "a turn for somebody who has had all steps"
        assert assignment.policies.keys() == {update.behavior_id for update in matchup.policies}
        assert assignment.policies.keys() == {i for i in self.ids if behavior_name(i) in self.newest}
        for update in matchup.policies:
            name = behavior_name(update.behavior_id)
            assert (update.snapshot, update.version) == assignment.policies[update.behavior_id]
            assert update.weights[0] == update.version, "these are another version's weights"
            if behavior_team(update.behavior_id) == assignment.learning_team:
                assert (update.snapshot, update.version) == (NEWEST, self.newest[name][0])
            elif update.snapshot != NEWEST:
                assert update.version == self.snapshots.setdefault((name, update.snapshot), update.version)

    def rate(self, game: Any) -> None:
        """Each game counts at most once, for those who met, by Elo's formula."""
        before = self.ratings()
        told = self.controller.rate(game.games)
        after = self.ratings()
        expected = dict(before)
        if game.games:
            generation, outcome = int(game.games["game_generation"][0]), float(game.games["game_outcome"][0])
            self.reckon(self.published[generation], outcome, expected)
        assert after == pytest.approx(expected)
        elos = {name: value for name, statistic, value in told if statistic == "Self-play/ELO"}
        for name in self.names:
            if name in elos:
                assert elos[name] == after[name, NEWEST]
            else:
                assert after[name, NEWEST] == before[name, NEWEST]
        counted = sum(
            sum(counts) for lineage in self.controller.lineages.values() for counts in lineage.results.values()
        )
        assert counted >= self.rated
        self.rated = counted

    def reckon(self, assignment: Assignment, outcome: float, ratings: dict[tuple[str, int], float]) -> None:
        teams: dict[int, list[tuple[str, int]]] = {}
        for behavior_id, (snapshot, _) in assignment.policies.items():
            teams.setdefault(behavior_team(behavior_id), []).append((behavior_name(behavior_id), snapshot))
        mine = teams.pop(assignment.learning_team)
        others = [team for team in teams.values() if not set(team) & set(mine)]
        old = dict(ratings)

        def mean(team: list[tuple[str, int]]) -> float:
            return sum(old[member] for member in team) / len(team)

        name = behavior_name(next(i for i in assignment.policies if behavior_team(i) == assignment.learning_team))
        for team in others:
            odds = 1 / (1 + 10 ** ((mean(team) - mean(mine)) / 400))
            change = self.settings[name].elo_k * (outcome - odds) / len(others)
            for member in mine:
                ratings[member] += change
            for member in team:
                ratings[member] -= change

    def ratings(self) -> dict[tuple[str, int], float]:
        return {
            (name, number): record.rating
            for name, lineage in self.controller.lineages.items()
            for number, record in lineage.records.items()
        }

    @invariant()
    def windows_are_bounded_and_hold_the_newest_snapshots(self) -> None:
        for name, lineage in self.controller.lineages.items() if hasattr(self, "controller") else ():
            numbers = [snapshot.number for snapshot in lineage.snapshots]
            assert len(numbers) <= self.settings[name].window
            assert numbers == list(range(lineage.age + 1))[-len(numbers) :] if numbers else name not in self.newest
            for snapshot in lineage.snapshots:
                assert snapshot.update == replace(snapshot.update, snapshot=snapshot.number, behavior_id=name)
                assert snapshot.update.weights[0] == snapshot.update.version

    @invariant()
    def somebody_learns_unless_all_are_done(self) -> None:
        if not hasattr(self, "controller") or not self.published:
            return
        playing = {behavior_name(i) for i in self.published[len(self.published)].policies}
        team = self.controller.learning_team
        learners = {behavior_name(i) for i in self.ids if behavior_team(i) == team}
        if learners <= self.done:
            assert playing <= self.done


TestSelfPlay = SelfPlay.TestCase
TestSelfPlay.settings = settings(max_examples=100, stateful_step_count=40)
