"""Self-play under any schedule: policies, rotations, swaps, trainers that are done, teams that come later, games that end
late, out of order or never, stamps that can't be trusted, resumes; with one behaviour or several, two teams or more.

The controller runs beside a model that knows only what was published and what was played, and says what must follow.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from fakes import policy_update, trajectories
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.config import SelfPlaySettings
from headrace.queues.messages import Assignment, Matchup
from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.ghost.controller import GhostController
from headrace.stages.ghost.policy_history import NEWEST

CASTS = (
    ("Ball?team=0", "Ball?team=1"),
    ("Ball?team=0", "Ball?team=1", "Ball?team=2"),
    ("Hider?team=0", "Seeker?team=1"),
    ("Keeper?team=0", "Striker?team=0", "Rival?team=1"),
    ("Fox?team=0", "Hen?team=1", "Hen?team=2", "Dog?team=3"),
)
MOVES = {"learn": 20, "play": 36, "arrive": 36, "resume": 4, "finish": 1, "join": 3}
"""What happens next, by weight: most of it in mid-play."""
LENGTH = 120
EXAMPLES = 24
ENOUGH = {"kept": 75, "late": 75, "turned away": 300, "rated": 75, "rated late": 45, "swapped": 30, "rotated": 45}
"""How often each has to have happened in all examples together, or the model has watched nothing; far below the usual."""


class Drawing:
    """Chooses opponents by chance, and remembers them."""

    def __init__(self) -> None:
        self.drawn: list[int] = []
        self.seen: list[int] = []

    def choose(self, candidates: Any, random: np.random.Generator) -> int:
        self.seen = [candidate.number for candidate in candidates]
        self.drawn.append(int(random.choice(self.seen)))
        return self.drawn[-1]


class Model:
    """One schedule; `happened` counts what it brought about."""

    def __init__(self, cast: tuple[str, ...], seed: int, happened: Counter[str]) -> None:
        self.random = np.random.default_rng(seed)
        self.happened = happened
        self.names = list(dict.fromkeys(map(behavior_name, cast)))
        self.settings = {name: self.some_settings() for name in self.names}
        self.published: list[Assignment] = []
        self.versions = dict.fromkeys(self.names, 0)
        self.steps = dict.fromkeys(self.names, 0)
        self.began = dict.fromkeys(self.names, 0)  # a learner's step at the beginning of its turn
        self.ghost_steps: Counter[str] = Counter()  # of this turn
        self.learned: Counter[str] = Counter()  # of this turn
        self.shown: dict[tuple[str, int], int] = {}  # the version that was shown as this snapshot
        self.done: set[str] = set()
        self.rotated_at = 1
        self.under_way: list[Any] = []
        self.controller = self.make(seed)
        names = [*map(behavior_name, cast)]
        later = [i for i in cast[1:] if names.count(behavior_name(i)) > 1 and self.chance(0.5)]
        self.absent, self.ids = later[:1], [i for i in cast if i not in later[:1]]
        for behavior_id in self.ids:
            assert self.controller.add_behavior(behavior_id) is None
        matchups = [self.controller.receive_policy(policy_update(name, 0, 0))[1] for name in self.names]
        assert not any(matchups[:-1]), "all have to be there"
        self.see(matchups[-1], rotates=False, changed=())

    def make(self, seed: int) -> GhostController:
        controller = GhostController(np.random.default_rng(seed))
        self.samplers = {name: Drawing() for name in self.names}
        for name in self.names:
            controller.add_history(name, self.settings[name], self.samplers[name])
        return controller

    def some_settings(self) -> SelfPlaySettings:
        return SelfPlaySettings(
            save_steps=self.number(1, 30),
            team_change=self.number(1, 60),
            swap_steps=self.number(1, 30),
            window=self.number(1, 4),
            play_against_latest_model_ratio=self.number(0, 2) / 2,
        )

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def one(self, things: Any) -> Any:
        return things[self.number(0, len(things) - 1)]

    # What happens. ---------------------------------------------------------------------------------------------------

    def move(self) -> None:
        weights = np.array([*MOVES.values()])
        getattr(self, self.random.choice([*MOVES], p=weights / weights.sum()))()
        for name, history in self.controller.histories.items():
            numbers = [snapshot.snapshot for snapshot in history.snapshots]
            assert numbers == list(range(history.newest_snapshot + 1))[-self.settings[name].window :]
            for snapshot in history.snapshots:
                assert snapshot.weights[0] == snapshot.version

    def learn(self) -> None:
        name = self.one(self.names)
        if name in self.done:
            return
        self.versions[name] += 1
        self.steps[name] += self.number(1, 50)
        learning = self.published[-1].learning_team
        ids = [i for i in self.ids if behavior_name(i) == name and behavior_team(i) == learning]
        rotates = self.turn_is_over() and self.next_team() != learning
        updates, matchup = self.controller.receive_policy(policy_update(name, self.versions[name], self.steps[name]))
        if rotates:
            assert not updates
            self.see(matchup, rotates=True, changed=self.ids)
        else:
            assert matchup is None
            assert [update.behavior_id for update in updates] == ids, "learners hear of each policy"
            assert all((u.version, u.snapshot) == (self.versions[name], NEWEST) for u in updates)

    def finish(self) -> None:
        name = self.one(self.names)
        news = name not in self.done
        self.done.add(name)
        rotates = news and self.turn_is_over() and self.next_team() != self.published[-1].learning_team
        matchup = self.controller.receive_report(name, True)
        assert (matchup is not None) == rotates
        if rotates:
            self.see(matchup, rotates=True, changed=self.ids)

    def join(self) -> None:
        if not self.absent:
            assert self.controller.add_behavior(self.one(self.ids)) is None, "it is known"
            return
        newcomer = self.absent.pop()
        self.ids = sorted([*self.ids, newcomer], key=lambda i: (behavior_team(i), i))
        rotates = self.turn_is_over() and self.next_team() != self.published[-1].learning_team
        self.see(self.controller.add_behavior(newcomer), rotates=rotates, changed=self.ids if rotates else ())

    def play(self) -> None:
        """A team plays under the newest assignment or, on an actor that has not heard of it yet, an older one."""
        assignment = self.published[-1 - min(self.number(0, 3), len(self.published) - 1)]
        behavior_id = self.one(sorted(assignment.policies))
        learns = behavior_team(behavior_id) == assignment.learning_team
        lengths = [self.number(1, 9) for _ in range(self.number(1, 3))]
        stamps = [learns != self.chance(0.1) for _ in lengths]
        outcome = self.number(0, 2) / 2
        game = [(assignment.generation, assignment.learning_team, assignment.opponent, outcome)] if learns else []
        self.under_way.append(
            trajectories(lengths, behavior_id, generation=assignment.generation, learning=stamps, games=game)
        )

    def arrive(self) -> None:
        if not self.under_way:
            return
        batch = self.under_way.pop(self.number(0, min(9, len(self.under_way) - 1)))
        if self.chance(0.15):
            return  # lost on the way
        self.rate(batch)
        current, name = self.published[-1], batch.behavior
        of_this_turn = int(batch.trajectories["generation"][0]) >= self.rotated_at
        learns = behavior_team(batch.behavior_id) == current.learning_team
        expected = batch.trajectories["learning"] & (of_this_turn and learns)
        keep = self.controller.learning_mask(batch)
        assert keep.tolist() == expected.tolist(), "learned from is what the learning team played in this turn"
        before = self.controller.histories[name].counters.ghost_step
        self.learned[name] += int(batch.lengths[keep].sum())
        away = int(batch.lengths[~keep].sum())
        due = of_this_turn and self.swap_falls_due(name, away)
        ghosts = [i for i in current.policies if behavior_name(i) == name and not self.learns(i)]
        learners = {behavior_name(i) for i in self.ids if self.learns(i)}
        had_all = any(self.learned[learner] > self.settings[learner].team_change for learner in learners)
        swaps = due and ghosts and not (had_all and self.next_team() != current.learning_team)
        matchup = self.controller.count_steps(batch, keep)
        assert (matchup is not None) == bool(swaps)
        assert self.controller.histories[name].counters.ghost_step - before == away
        self.happened["kept"] += int(keep.sum())
        self.happened["turned away"] += int((~keep).sum())
        self.happened["late"] += int((~keep & batch.trajectories["learning"]).sum())
        if matchup is not None:
            self.happened["swapped"] += 1
            self.see(matchup, rotates=False, changed=ghosts)

    def resume(self) -> None:
        """From its state, with another chance, a controller goes on as if nothing had happened."""
        state = self.controller.state_dict()
        resumed = GhostController(np.random.default_rng(99))
        resumed.load_state_dict(state)
        for name in self.names:
            resumed.add_history(name, self.settings[name], self.samplers[name])
        said: list[Any] = []
        words = [(name, word) for name in self.names for word in ("policy", "report")] + [(i, "id") for i in self.ids]
        for at in self.random.permutation(len(words)):
            who, word = words[at]
            if word == "policy":
                updates, matchup = resumed.receive_policy(policy_update(who, self.versions[who], self.steps[who]))
                assert not updates
            else:
                matchup = resumed.add_behavior(who) if word == "id" else resumed.receive_report(who, who in self.done)
            said.append(matchup)
        assert not any(said[:-1]), "nothing is published before all have spoken"
        assert said[-1].assignment.generation == len(self.published)
        for behavior_id, played in self.published[-1].policies.items():
            if not self.learns(behavior_id):
                assert said[-1].assignment.policies[behavior_id] == played
        assert repr(resumed.state_dict()) == repr(state)
        self.controller = resumed

    # What must hold. -------------------------------------------------------------------------------------------------

    def learns(self, behavior_id: str) -> bool:
        return behavior_team(behavior_id) == self.published[-1].learning_team

    def turn_is_over(self) -> bool:
        learners = {behavior_name(i) for i in self.ids if self.learns(i)}
        had = any(self.steps[name] - self.began[name] > self.settings[name].team_change for name in learners)
        return had or learners <= self.done

    def next_team(self) -> int:
        """By team id, round and round, past those who are done; the one that learns if there is no other."""
        now = self.published[-1].learning_team
        teams = sorted({behavior_team(i) for i in self.ids}, key=lambda team: (team <= now, team))
        waiting = [t for t in teams if not {behavior_name(i) for i in self.ids if behavior_team(i) == t} <= self.done]
        return waiting[0] if waiting else now

    def swap_falls_due(self, name: str, steps: int) -> bool:
        every, before = self.settings[name].swap_steps, self.ghost_steps[name]
        self.ghost_steps[name] += steps
        first = (every + 1) // 2
        return (self.ghost_steps[name] - first) // every > (before - first) // every

    def see(self, matchup: Matchup | None, *, rotates: bool, changed: Any) -> None:
        """A matchup was published: who plays in it, with what, and whether as many were drawn as had to be."""
        assert matchup is not None
        assignment, last = matchup.assignment, self.published[-1] if self.published else None
        assert assignment.generation == len(self.published) + 1, "generations rise by one"
        assert assignment.learning_team == (self.next_team() if rotates else last.learning_team if last else 0)
        self.published.append(assignment)
        if rotates:
            self.happened["rotated"] += 1
            self.rotated_at = assignment.generation
            self.ghost_steps.clear()
            self.learned.clear()
            for name in {behavior_name(i) for i in self.ids if self.learns(i)}:
                self.began[name] = self.steps[name]
        assert [*assignment.policies] == self.ids
        for update in matchup.policies:
            name, played = behavior_name(update.behavior_id), assignment.policies[update.behavior_id]
            assert (update.snapshot, update.version) == played
            assert update.weights[0] == update.version, "these are another version's weights"
            if self.learns(update.behavior_id):
                assert played == (NEWEST, self.versions[name])
            elif update.behavior_id not in changed and last is not None and update.behavior_id in last.policies:
                assert played == last.policies[update.behavior_id], "frozen until it is drawn anew"
            elif update.snapshot == NEWEST:
                assert update.version == self.versions[name]
            else:
                assert update.version == self.shown.setdefault((name, update.snapshot), update.version)
        for name, sampler in self.samplers.items():
            numbers = [assignment.policies[i][0] for i in changed if behavior_name(i) == name and not self.learns(i)]
            ratio = self.settings[name].play_against_latest_model_ratio
            assert sampler.drawn == [number for number in numbers if number != NEWEST]
            assert ratio == 0.5 or all((number == NEWEST) == (ratio == 1) for number in numbers)
            sampler.drawn.clear()

    def rate(self, batch: Any) -> None:
        """Each game counts at most once, for those who met, by Elo's formula."""
        expected = self.ratings()
        before = self.counted()
        if batch.games:
            generation, outcome = int(batch.games["game_generation"][0]), float(batch.games["game_outcome"][0])
            duels = self.reckon(self.published[generation - 1], outcome, expected)
            self.happened["rated"] += duels > 0
            self.happened["rated late"] += duels > 0 and generation < len(self.published)
        else:
            duels = 0
        told = self.controller.rate_games(batch.games)
        after = self.ratings()
        assert after == pytest.approx(expected)
        assert self.counted() - before == duels
        assert bool(told) == (duels > 0)
        assert all(value == after[name, NEWEST] for name, statistic, value in told if statistic == "Self-play/ELO")

    def counted(self) -> int:
        """Games that snapshots have on record."""
        return sum(record.games for line in self.controller.histories.values() for record in line.records.values())

    def reckon(self, assignment: Assignment, outcome: float, ratings: dict[tuple[str, int], float]) -> int:
        """Change ratings by a game; how many records it goes into."""
        teams: dict[int, list[tuple[str, int]]] = {}
        for behavior_id, (snapshot, _) in assignment.policies.items():
            teams.setdefault(behavior_team(behavior_id), []).append((behavior_name(behavior_id), snapshot))
        mine = teams.pop(assignment.learning_team)
        others = [team for team in teams.values() if not set(team) & set(mine)]
        old = dict(ratings)

        def mean(team: list[tuple[str, int]]) -> float:
            return sum(old[member] for member in team) / len(team)

        for team in others:
            odds = 1 / (1 + 10 ** ((mean(team) - mean(mine)) / 400))
            change = self.settings[mine[0][0]].elo_k * (outcome - odds) / len(others)
            for member in mine:
                ratings[member] += change
            for member in team:
                ratings[member] -= change
        return sum(map(len, others))

    def ratings(self) -> dict[tuple[str, int], float]:
        histories = self.controller.histories.items()
        return {(name, number): record.rating for name, line in histories for number, record in line.records.items()}


@pytest.mark.lengthy
def test_random_schedules_equal_a_model():
    happened: Counter[str] = Counter()

    @examples(EXAMPLES)
    @given(cast=st.sampled_from(CASTS), seed=st.integers(0, 2**32 - 1))
    def hold(cast: tuple[str, ...], seed: int) -> None:
        model = Model(cast, seed, happened)
        for _ in range(LENGTH):
            model.move()

    hold()
    assert {what: happened[what] for what in ENOUGH if happened[what] < ENOUGH[what]} == {}
