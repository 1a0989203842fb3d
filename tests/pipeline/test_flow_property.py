"""Flow control: it never hangs, loses nothing, doubles nothing, and bounds how far actors run ahead.

The runs are whole ones: the real coordinator starts, joins, watches and ends its hosts. Everything differs between
examples: behaviours, teams, episodes, horizons, buffer sizes, lags, queue bounds, replicas, checkpoints, custom stages
that drop and double, environments that crash, actors that are killed, and delays on every way a message can take. Time
is virtual, so a hang is a `TimeoutError` and not a wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fakes import TICK, Cast, check_trajectories
from flow_harness import ActorRun, Flow, Scenario, Trained, run_flow
from hypothesis import event, example, given
from hypothesis import strategies as st
from properties import examples

from headrace.config import SelfPlaySettings
from headrace.pipeline.roles.actor import AGENT_ID_RANGE
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import behavior_name, behavior_team

pytestmark = pytest.mark.lengthy

Steps = list[tuple[Any, ...]]

LAGS: st.SearchStrategy[int | str] = st.one_of(st.integers(0, 3), st.just("auto"))
DELAYS_S = st.lists(st.sampled_from([0.0, 5e-5, 1e-3, 2e-2]), min_size=1, max_size=4).map(tuple)


def trained(name: str) -> st.SearchStrategy[Trained]:
    sizes = st.integers(1, 24)
    return st.builds(Trained, st.just(name), sizes, st.integers(1, 20), st.integers(1, 6), st.booleans())


def casts(behavior_id: str) -> st.SearchStrategy[Cast]:
    return st.builds(
        Cast,
        st.just(behavior_id),
        agents=st.integers(1, 3),
        period=st.sampled_from([1, 1, 2, 5]),
        longest=st.sampled_from([1, 4, 15, 60]),
        gap=st.integers(0, 5),
        newcomers=st.sampled_from([0.0, 0.5]),
        joins_at=st.sampled_from([0, 0, 6]),
    )


SELF_PLAY = st.builds(
    SelfPlaySettings,
    save_steps=st.integers(1, 40),
    team_change=st.integers(1, 80),
    swap_steps=st.integers(1, 40),
    window=st.integers(1, 3),
    play_against_latest_model_ratio=st.sampled_from([0.0, 0.5, 1.0]),
)


@st.composite
def scenarios(draw: st.DrawFn, replicas: Any = None, accidents: bool = True, ghosts: bool = True) -> Scenario:
    names = {
        "one behaviour": ["Walker"],
        "two behaviours": ["Walker", "Swimmer"],
        "symmetric": ["Ball?team=0", "Ball?team=1"],
        "asymmetric": ["Hider?team=0", "Seeker?team=1"],
        "three teams": ["Ball?team=0", "Ball?team=1", "Rival?team=2"],
        "a team of two": ["Keeper?team=0", "Striker?team=0", "Rival?team=1"],
        "beside another": ["Hider?team=0", "Seeker?team=1", "Walker"],
    }
    kind = draw(st.sampled_from(list(names) if ghosts else list(names)[:2]))
    count = draw(replicas if replicas is not None else st.integers(1, 4))
    self_play = draw(SELF_PLAY) if "?" in names[kind][0] else None
    deaths = st.lists(st.tuples(st.floats(1e-4, 1e-2), st.integers(0, count - 1)), max_size=3).map(tuple)
    return Scenario(
        trained=tuple(draw(trained(name)) for name in dict.fromkeys(map(behavior_name, names[kind]))),
        casts=tuple(draw(casts(name)) for name in names[kind]),
        seed=draw(st.integers(0, 2**16)),
        replicas=count,
        max_policy_lag=draw(LAGS),
        learning_s=draw(st.sampled_from([0.0, 0.0, 1e-3])),
        num_envs=draw(st.integers(1, 2)),
        game_length=draw(st.sampled_from([0, 3, 12])) if self_play is not None else 0,
        self_play=self_play,
        plain=("Walker",),
        min_rows=draw(st.sampled_from([1, 4, 12])),
        bound=draw(st.integers(1, 3)),
        slowness_s=draw(DELAYS_S),
        meddling=draw(st.sampled_from([0.0, 0.3, 0.9])) if accidents else 0.0,
        deaths_s=draw(deaths) if accidents else (),
        checkpoint_interval=draw(st.sampled_from([10**6, 10**6, 20])),
        breaks_at=draw(st.sampled_from([(), (), (3, 9, 10)])) if accidents else (),
    )


OPEN_STEPS_AT_A_CHANGE_OF_TURNS = Scenario(
    trained=(Trained("Hider", 7, 6, 6), Trained("Seeker", 17, 1, 6)),
    casts=(Cast("Hider?team=0", longest=1), Cast("Seeker?team=1", longest=1, gap=1)),
    seed=100,
    replicas=2,
    max_policy_lag=0,
    num_envs=2,
    self_play=SelfPlaySettings(save_steps=7, team_change=53, swap_steps=6, window=2),
    min_rows=12,
    bound=3,
    slowness_s=(5e-5, 1e-3, 5e-5, 2e-2),
)
"""One actor stands still when the turn of its hiders ends, another has used up the window: what is open is beyond it."""
A_GRANT_ON_ITS_WAY_AT_A_CHANGE_OF_TURNS = Scenario(
    trained=tuple(Trained(name, 1, 1, 1, uses_all=False) for name in ("Hider", "Seeker", "Walker")),
    casts=tuple(Cast(behavior_id, longest=1) for behavior_id in ("Hider?team=0", "Seeker?team=1", "Walker")),
    replicas=3,
    max_policy_lag=0,
    self_play=SelfPlaySettings(
        save_steps=1, team_change=1, swap_steps=1, window=1, play_against_latest_model_ratio=0.0
    ),
    plain=("Walker",),
    bound=1,
)
"""An actor waits for hiders' and walkers' credits, then for seekers' and walkers': the first answer comes too late."""


AN_ACTOR_THAT_OTHERS_OVERTAKE = Scenario(
    trained=(Trained("Walker", 12, 3, 20, uses_all=False),),
    casts=(Cast("Walker", longest=4),),
    seed=9,
    replicas=3,
    max_policy_lag=2,
    bound=3,
    slowness_s=(0.0, 5e-5, 2e-2),
)
"""While one actor's tick lasts, the others make enough steps for many updates."""
TICKS_BEYOND_THE_WINDOW = Scenario(
    trained=(Trained("Walker", 12, 3, 20),),
    casts=(Cast("Walker", agents=3, longest=4),),
    seed=5,
    replicas=3,
    max_policy_lag=0,
    bound=3,
    slowness_s=(0.0, 5e-5, 2e-2),
)
"""What several actors make beyond their caps fills half an update."""


@examples(4)
@given(scenarios())
@example(OPEN_STEPS_AT_A_CHANGE_OF_TURNS)
@example(A_GRANT_ON_ITS_WAY_AT_A_CHANGE_OF_TURNS)
def test_a_run_reaches_its_updates_and_nothing_is_lost_doubled_or_reordered(scenario: Scenario) -> None:
    flow = run_flow(scenario)
    event(f"{scenario.replicas} replicas, self-play: {scenario.self_play is not None}")
    assert flow.coordinator.checkpointing.newest >= 0, "the last checkpoint is whole"
    for each in seen(flow):
        assert flow.trainers[each.name].step >= each.updates * each.rows_per_update
        for run in flow.actors.values():
            check_account(flow, each.name, run)
            check_credits(flow, each.name, run)
        check_learners(flow, each.name)
        check_bounds(flow, each.name)


@examples(4)
@given(scenarios(accidents=False))
@example(AN_ACTOR_THAT_OTHERS_OVERTAKE)
@example(TICKS_BEYOND_THE_WINDOW)
def test_steps_of_any_number_of_actors_are_learned_from_at_most_max_policy_lag_updates_late(scenario: Scenario) -> None:
    """For any delays. Lateness is measured at the tick at which the step was completed, when its credit is spent.

    A tick is never cut, so an actor may make as many steps beyond its cap as it has agents, less one: those come on
    top of the window of (lag + 1) × rows_per_update, and only those.
    """
    check_lag(run_flow(scenario))


@examples(4)
@given(scenarios())
def test_if_actors_die_only_their_steps_in_flight_make_others_steps_later(scenario: Scenario) -> None:
    check_lag(run_flow(replace(scenario, meddling=0.0)))


@examples(4)
@given(scenarios(replicas=st.just(1), accidents=False, ghosts=False), DELAYS_S)
def test_a_deterministic_run_learns_the_same_however_quick_its_parts_are(
    scenario: Scenario, other_slowness_s: tuple[float, ...]
) -> None:
    """Not so with ghosts: which of assignment and opponent's policy comes first is fixed within one event loop only.

    Nor with checkpoints and several behaviours: which trainer's report comes first decides when one begins.
    """
    scenario = replace(scenario, deterministic=True, max_policy_lag=0, checkpoint_interval=10**6)
    first = run_flow(scenario)
    second = run_flow(replace(scenario, slowness_s=other_slowness_s))
    for each in seen(first):
        assert learned(first, each) == learned(second, each)


def seen(flow: Flow) -> list[Trained]:
    """The behaviours of a run: one that appears when all others are done is not waited for."""
    there = {behavior_name(cast.behavior_id) for cast in flow.scenario.casts if not cast.joins_at}
    assert there <= flow.trainers.keys()
    return [each for each in flow.scenario.trained if each.name in flow.trainers]


def learned(flow: Flow, each: Trained) -> list[Any]:
    """Everything of the steps that the updates were made from, in their order."""
    trainer = flow.trainers[each.name]
    rows: list[Any] = []
    for batch in trainer.batches:
        columns = [batch.rows[name].tolist() for name in sorted(batch.rows)]
        rows += zip(*columns, strict=True)
    return rows[: sum(trainer.updates)]


def steps_of(batches: Iterable[TrajectoryBatch], name: str, source: int) -> Steps:
    """(agent, episode, decision) of each step of a behaviour and source, in order."""
    mine = [batch for batch in batches if (batch.behavior, batch.source) == (name, source)]
    return [tuple(row) for batch in mine for row in batch.rows["obs_0"][:, :3].tolist()]


def check_account(flow: Flow, name: str, run: ActorRun) -> None:
    """Where each step that an actor emitted has gone."""

    def steps(batches: Iterable[TrajectoryBatch]) -> Steps:
        return steps_of(batches, name, run.source)

    for batch in flow.came["emitted"]:
        if batch.source == run.source:
            check_trajectories(batch, run.replica * AGENT_ID_RANGE)
    emitted = steps(flow.came["emitted"])
    assert len(set(emitted)) == len(emitted), "emitted twice"
    by_episode: dict[Any, list[int]] = {}
    for agent, episode, decision in emitted:
        by_episode.setdefault((agent, episode), []).append(decision)
    for decisions in by_episode.values():
        assert decisions == list(range(len(decisions))), "steps of an episode are missing or out of order"

    repeated, arrived = Counter(steps(flow.doubled)), Counter(steps(arrivals(flow, name)))
    turned_away = Counter(steps(flow.came["unjudged"])) - Counter(steps(flow.came["judged"]))
    went = arrived + turned_away + Counter(steps(flow.dropped))
    came = Counter(emitted) + repeated
    assert went == came if run.alive else went <= came
    last: dict[Any, int] = {}
    learned = steps(flow.trainers[name].batches)
    for step in learned:
        agent, episode, decision = step
        assert decision > last.get((agent, episode), -1) or step in repeated, "learned out of order"
        last[agent, episode] = decision


def arrivals(flow: Flow, name: str) -> list[TrajectoryBatch]:
    """Everything that has come to a trainer: what it did not take in came when it was done."""
    delivered = flow.network.delivered
    arrived = delivered.get(f"learn/{name}", []) if flow.came["judged"] else delivered.get(f"trajectories/{name}", [])
    taken = flow.trainers[name].batches
    whole = [batch for batch in arrived if batch.num_trajectories]
    for got, sent in zip(taken, whole, strict=False):
        assert (got.source, got.num_rows) == (sent.source, sent.num_rows), "lost on its way to the trainer"
    assert len(taken) <= len(whole)
    return arrived


def check_credits(flow: Flow, name: str, run: ActorRun) -> None:
    """All credits that a living actor has spent have come back, and what the environment reported was emitted.

    During the run, `AuditedLedger` compares the ledger with an account of its own.
    """
    replaced = any(other.replica == run.replica and other.source > run.source for other in flow.actors.values())
    assert replaced == (run.source in flow.ledger.removed), "a dead actor holds no credits"
    if not run.alive:
        return
    doubled = sum(b.credits for b in flow.doubled if (b.behavior, b.source) == (name, run.source))
    assert flow.ledger.returned_of(name, run.source) == flow.emitted[name, run.source] - doubled
    if len(flow.trainers) == len(run.groups) == 1:
        told = run.groups[0].told
        # The last tick may have come after the actor was told to stop.
        assert len(steps_of(flow.came["emitted"], name, run.source)) in told[-2:]


def check_learners(flow: Flow, name: str) -> None:
    """Only what the learning team played, by the policy that was learning, has been learned from."""
    teams = [(generation, a.learning_team) for generation, a in sorted(flow.assignments.items())]
    assert [generation for generation, _ in teams] == list(range(1, len(teams) + 1)), "generations rise by one"
    rotations = [0, *(now for (_, before), (now, team) in pairwise(teams) if team != before)]
    era = 0
    for batch in flow.trainers[name].batches:
        assert batch.trajectories["learning"].all()
        assert (batch.rows["acted_snapshot"] == -1).all()
        if not flow.scenario.plays_itself(name):
            assert not batch.trajectories["generation"].any()
            continue
        for generation, first in zip(
            *(batch.trajectories[n].tolist() for n in ("generation", "first_version")), strict=True
        ):
            assignment = flow.assignments[generation]
            assert behavior_team(batch.behavior_id) == assignment.learning_team, "a ghost was learned from"
            assert first >= assignment.policies[batch.behavior_id][1]
            now = sum(rotation <= generation for rotation in rotations)
            assert now >= era, "a step from before the rotation was learned from after it"
            era = now


def check_bounds(flow: Flow, name: str) -> None:
    """No queue was fuller than it may be, and no more steps were under way than the window allows."""
    for queue in flow.network.queues:
        assert queue.statistics().high_water <= queue.maxlen
    doubled = sum(batch.credits for batch in flow.doubled if batch.behavior == name)
    assert flow.ledger.peak[name] <= flow.window(name) + overshoot(flow.scenario, name) + doubled


def check_lag(flow: Flow) -> None:
    """No step was learned from later than the window allows, and what came on top of it."""
    for each in seen(flow):
        most = flow.window(each.name) + overshoot(flow.scenario, each.name) + flow.ledger.written_off[each.name]
        lag = max(lags(flow, each.name), default=0)
        event(f"lag {lag} of {flow.scenario.max_policy_lag}")
        assert lag <= (most - 1) // each.rows_per_update


def overshoot(scenario: Scenario, name: str) -> int:
    """Steps that may be made beyond all caps, since a tick is never cut."""
    agents = sum(cast.agents for cast in scenario.casts if behavior_name(cast.behavior_id) == name)
    return scenario.replicas * (agents * scenario.num_envs - 1)


def lags(flow: Flow, name: str) -> Sequence[int]:
    """Of each step learned from: updates made since its actor acted by the version that it completed the step under."""
    trainer = flow.trainers[name]
    ends = np.cumsum(trainer.updates)
    found, taken = [], 0
    for batch in trainer.batches:
        learned_at = np.searchsorted(ends, np.arange(taken, taken + batch.num_rows), side="right")
        taken += batch.num_rows
        last = np.cumsum(batch.lengths) - 1
        completed = np.roll(batch.rows["obs_0"][:, TICK], -1)
        completed[last] = batch.trajectories["next_obs_0"][:, TICK]
        versions = flow.actors[batch.source].versions(name)
        for tick, version in zip(completed.tolist(), learned_at.tolist(), strict=True):
            if version < len(ends):
                found.append(version - versions[tick])
    return found
