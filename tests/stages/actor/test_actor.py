"""The actor: when it steps, when it stands still, and what it gives out."""

from __future__ import annotations

import asyncio
import inspect
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import Cast, Counters, CountingGroup, EchoPolicy, check_trajectories, policy_update
from virtual_time import until_blocked

from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import Assignment, Barrier, TrajectoryBatch
from headrace.stages.actor.actor import Actor, ActorPort
from headrace.stages.actor.credits import CreditGate
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings
from headrace.stages.agent import AgentProcessor
from headrace.stages.loop import StageFailure, run_source
from headrace.stages.restarts import RestartBudget
from headrace.stages.stage import StageContext

pytestmark = pytest.mark.virtual_time

FOREVER = Cast("Walker", agents=2, shortest=10**6, longest=10**6)
"""Two agents whose episodes never end."""


class Rig:
    """An actor that runs, and everything around it."""

    def __init__(
        self,
        *casts,
        horizon=1000,
        min_rows=1,
        maxlen=1000,
        self_play=False,
        restarts=None,
        resets=False,
        resumed_at=-1,
        group_class=CountingGroup,
        **options,
    ):
        self.groups = []
        self.requests = []
        self.seen = []
        self.ends = []
        self.sender = AgentManagerQueue("out", maxlen)
        counters = Counters()

        def make_group():
            self.groups.append(group_class(casts, **{"delay_s": lambda: 1.0, "counters": counters, **options}))
            return self.groups[-1]

        names = {cast.behavior_id.partition("?")[0] for cast in casts}
        self.processor = AgentProcessor(dict.fromkeys(names, horizon), source=3, min_rows=min_rows)
        self.mappings = PolicyMappings(EchoPolicy, lambda name: self_play)
        self.actor = Actor(
            EnvironmentStage(make_group, self.mappings),
            self.processor,
            CreditGate(lambda *request: self.requests.append(request)),
            ActorPort(lambda spec: self.seen.append(spec.behavior_id), self.ends.append),
            restarts=restarts,
            resets_at_checkpoints=resets,
            resumed_at=resumed_at,
            clock=lambda: 0.0,
        )

    async def __aenter__(self):
        self.task = asyncio.create_task(run_source(self.actor, self.sender, StageContext("actor", seed=5)))
        await until_blocked()
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait([self.task])

    @property
    def ticks(self):
        return self.groups[-1].tick

    @property
    def asked(self):
        """The last request: (number, used, wants, gives back)."""
        number, used, wants, gives_back = self.requests[-1]
        return number, dict(used), list(wants), list(gives_back)

    def grant(self, versions=None, **caps):
        self.actor.receive_grant(self.requests[-1][0], caps, versions or dict.fromkeys(caps, 0))

    def take(self):
        """Everything emitted so far."""
        items = [self.sender.get_nowait() for _ in range(self.sender.qsize())]
        for item in items:
            if isinstance(item, TrajectoryBatch):
                check_trajectories(item)
                assert item.source == 3
        return items

    async def ended(self):
        await self.task
        return self.take()


def rows(items):
    return sum(item.num_rows for item in items if isinstance(item, TrajectoryBatch))


def versions(items):
    return [v for item in items if isinstance(item, TrajectoryBatch) for v in item.rows["acted_version"].tolist()]


# Starting. -----------------------------------------------------------------------------------------------------------


async def test_an_actor_announces_each_behaviour_once():
    async with Rig(FOREVER, Cast("Swimmer")) as rig:
        assert rig.seen == ["Walker", "Swimmer"]


async def test_an_actor_announces_behaviours_that_appear_later():
    async with Rig(FOREVER, Cast("Swimmer", joins_at=2)) as rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=1000)
        await asyncio.sleep(10)
        assert rig.seen == ["Walker", "Swimmer"]
        assert rig.ticks == 2, "it waits for the newcomer's policy"
        rig.actor.receive_policy(policy_update("Swimmer", 0))
        await until_blocked()
        rig.grant(Walker=1000, Swimmer=1000)
        await asyncio.sleep(10)
        assert rig.ticks > 9


async def test_an_actor_steps_only_with_policies_and_credits():
    async with Rig(FOREVER) as rig:
        await asyncio.sleep(10)
        assert not rig.requests
        rig.actor.receive_policy(policy_update("Walker", 0))
        await asyncio.sleep(10)
        assert rig.asked == (1, {"Walker": 0}, ["Walker"], [])
        assert rig.ticks == 0
        rig.grant(Walker=4)
        await asyncio.sleep(1)
        assert rig.ticks > 0


# Flow control. -------------------------------------------------------------------------------------------------------


async def walking(**options):
    """An actor with a policy of version 0 that waits for its first grant."""
    rig = Rig(FOREVER, **options)
    await rig.__aenter__()
    rig.actor.receive_policy(policy_update("Walker", 0))
    await until_blocked()
    return rig


async def test_an_actor_stops_at_its_cap_and_flushes():
    rig = await walking()
    rig.grant(Walker=6)
    await asyncio.sleep(100)
    assert rig.ticks == 3, "two agents make two steps a tick"
    assert rows(rig.take()) == 6
    assert rig.asked == (3, {"Walker": 6}, ["Walker"], ["Walker"])
    await rig.__aexit__()


async def test_an_actor_with_a_new_source_requests_new_credits_and_loses_no_step():
    rig = await walking()
    rig.grant(Walker=10)
    await asyncio.sleep(2.5)
    rig.actor.begin_source(8)
    assert rig.asked == (2, {"Walker": 0}, [], ["Walker"])  # as the source that it was: nothing was emitted
    await asyncio.sleep(100)
    assert rig.ticks == 3
    number, used, wants, _ = rig.asked
    assert (used, wants) == ({"Walker": 6}, ["Walker"])
    (batch,) = (rig.sender.get_nowait() for _ in range(rig.sender.qsize()))
    assert (batch.source, batch.num_rows) == (8, 6)
    rig.actor.receive_grant(number, {"Walker": 12}, {"Walker": 0})
    await asyncio.sleep(100)
    assert rig.ticks == 6
    await rig.__aexit__()


async def test_an_actor_exceeds_its_cap_by_less_than_a_tick():
    rig = await walking()
    rig.grant(Walker=5)
    await asyncio.sleep(100)
    assert (rig.ticks, rows(rig.take())) == (3, 6)
    await rig.__aexit__()


async def test_an_actor_requests_credits_before_they_run_out():
    rig = await walking()
    rig.grant(Walker=8)
    await asyncio.sleep(2.5)
    assert rig.asked == (2, {"Walker": 4}, ["Walker"], [])
    rig.grant(Walker=16)
    await asyncio.sleep(5)
    assert (rig.ticks, rig.take()) == (8, []), "it has not stood still, so nothing was flushed"
    await rig.__aexit__()


async def test_an_actor_waits_for_the_policy_that_a_grant_names():
    rig = await walking()
    rig.grant(Walker=2)
    await asyncio.sleep(10)
    rig.grant({"Walker": 1}, Walker=6)
    await asyncio.sleep(10)
    assert rig.ticks == 1
    rig.actor.receive_policy(policy_update("Walker", 1))
    await asyncio.sleep(10)
    assert rig.ticks == 3
    assert versions(rig.take()) == [0, 0, 1, 1, 1, 1]
    await rig.__aexit__()


async def test_a_newer_policy_replaces_the_decisions_of_a_waiting_actor():
    rig = await walking()
    rig.grant(Walker=2)
    await asyncio.sleep(10)
    rig.actor.receive_policy(policy_update("Walker", 1))
    rig.grant({"Walker": 1}, Walker=4)
    await asyncio.sleep(10)
    assert versions(rig.take()) == [0, 0, 1, 1]
    await rig.__aexit__()


async def test_a_policy_that_arrives_while_a_batch_is_blocked_replaces_the_decisions():
    """Strictly on-policy: what is decided under a grant is decided by the policy that it was made for."""
    rig = await walking(maxlen=1)
    rig.sender.put_nowait("in the way")
    rig.grant(Walker=2)
    await asyncio.sleep(10)
    rig.actor.receive_policy(policy_update("Walker", 1))  # the flushed batch has no place yet
    await until_blocked()
    assert rig.sender.get_nowait() == "in the way"
    await until_blocked()
    rig.grant({"Walker": 1}, Walker=4)
    emitted = [await rig.sender.get(), await rig.sender.get()]
    assert versions(emitted) == [0, 0, 1, 1]
    await rig.__aexit__()


async def test_a_newer_policy_flushes_the_trajectories_of_the_older_one():
    rig = await walking()
    rig.grant(Walker=1000)
    await asyncio.sleep(3.5)
    assert rig.take() == []
    rig.actor.receive_policy(policy_update("Walker", 1))
    await asyncio.sleep(1)
    (batch,) = rig.take()
    assert versions([batch]) == [0] * 8
    assert not (batch.terminated | batch.truncated).any()
    await rig.__aexit__()


async def test_a_behaviour_without_agents_does_not_block_the_others():
    async with Rig(FOREVER, Cast("Swimmer", longest=1, gap=10**6)) as rig:
        for name in ("Walker", "Swimmer"):
            rig.actor.receive_policy(policy_update(name, 0))
        await until_blocked()
        rig.grant(Walker=100, Swimmer=5)
        await asyncio.sleep(10)
        assert rig.ticks >= 9
        given_back = [request[3] for request in rig.requests if "Swimmer" in request[3]]
        assert given_back == [["Swimmer"]], "others may need its credits"


# Self-play. ----------------------------------------------------------------------------------------------------------


async def test_an_actor_plays_as_soon_as_it_has_an_assignment():
    home, away = "Ball?team=0", "Ball?team=1"
    async with Rig(Cast(home), Cast(away), self_play=True, game_length=3) as rig:
        rig.actor.receive_policy(policy_update(home, 0))
        rig.actor.receive_policy(policy_update(away, 0, snapshot=0))
        await asyncio.sleep(10)
        assert not rig.requests
        rig.actor.receive_assignment(Assignment(1, 0, {home: (-1, 0), away: (0, 0)}, 0))
        await asyncio.sleep(10)
        rig.grant(Ball=6)
        await asyncio.sleep(100)
        batches = rig.take()
        learning = [batch for batch in batches if batch.behavior_id == home]
        ghosts = [batch for batch in batches if batch.behavior_id == away]
        assert sum(batch.credits for batch in learning) == rows(learning) == 6
        assert sum(batch.credits for batch in ghosts) == 0
        assert rows(ghosts) > 0


HIDER, SEEKER = "Hider?team=0", "Seeker?team=1"


def give_turn(rig, generation, team):
    """Let a team learn, with version `generation`; the other one plays with a snapshot."""
    players = {HIDER: -1, SEEKER: generation} if team == 0 else {HIDER: generation, SEEKER: -1}
    for behavior_id, snapshot in players.items():
        rig.actor.receive_policy(policy_update(behavior_id, generation, snapshot=snapshot))
    policies = {behavior_id: (snapshot, generation) for behavior_id, snapshot in players.items()}
    rig.actor.receive_assignment(Assignment(generation, team, policies, generation))


async def test_the_next_team_s_turn_restarts_all_games():
    endless: dict[str, Any] = {"shortest": 10**6, "longest": 10**6}
    async with Rig(Cast(HIDER, **endless), Cast(SEEKER, **endless), self_play=True, game_length=10**6) as rig:
        give_turn(rig, 1, team=0)
        await asyncio.sleep(3)
        rig.grant(Hider=10**6)
        await asyncio.sleep(4.5)
        give_turn(rig, 2, team=0)  # other opponents
        await asyncio.sleep(4)
        assert len(rig.groups[0].seeds) == 1, "the learning team's games go on with whom they began"
        give_turn(rig, 3, team=1)
        await asyncio.sleep(3)
        rig.grant(Seeker=10**6)
        await asyncio.sleep(4.5)
        assert len({*rig.groups[0].seeds}) == 2, "anew, and with a seed of its own"
        rig.actor.request_stop()
        await asyncio.sleep(2)
        batches = [item for item in rig.take() if isinstance(item, TrajectoryBatch)]
        learned = {
            (batch.behavior_id, generation)
            for batch in batches
            for learns, generation in zip(
                batch.trajectories["learning"].tolist(), batch.trajectories["generation"].tolist(), strict=True
            )
            if learns
        }
        assert (SEEKER, 3) in learned, "a game of the new turn are played, and learned from"


async def test_steps_that_are_open_at_the_end_of_a_turn_spend_no_credits():
    """No credits hold an actor back in the others' turn, so it must not make learners' steps there."""
    async with Rig(Cast(HIDER, agents=2), Cast(SEEKER, agents=3), self_play=True, game_length=1) as rig:
        give_turn(rig, 1, team=0)
        await asyncio.sleep(10)
        rig.grant(Hider=2)
        await asyncio.sleep(10)
        assert rig.asked[1:3] == ({"Hider": 2, "Seeker": 0}, ["Hider"])
        seekers, turns = 0, 3
        for turn in range(turns):
            give_turn(rig, 2 * turn + 2, team=1)  # it stands still, and the hiders have decided
            await asyncio.sleep(10)
            assert rig.asked[1:3] == ({"Hider": 2, "Seeker": seekers}, ["Seeker"])
            rig.grant(Seeker=10**6)
            await asyncio.sleep(4.5)
            give_turn(rig, 2 * turn + 3, team=0)  # it moves, and the seekers have decided
            await asyncio.sleep(10)
            # Five ticks, all of a game that began with their turn; what they do at the last comes too late.
            seekers += 4 * 3
            assert rig.asked[1:3] == ({"Hider": 2, "Seeker": seekers}, ["Hider"])
        batches = rig.take()
        assert sum(batch.credits for batch in batches if batch.behavior_id == HIDER) == 2
        assert sum(batch.credits for batch in batches if batch.behavior_id == SEEKER) == seekers
        assert rows(batches) == 5 * (1 + 5 * turns), "none is lost"


# Checkpoints and stopping. --------------------------------------------------------------------------------------------


async def test_a_barrier_separates_the_batches_before_and_after_it():
    async with Rig(Cast("Walker", longest=1)) as rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=1000)
        await asyncio.sleep(2.5)
        rig.actor.request_checkpoint(7)
        await asyncio.sleep(2)
        kinds = [item if isinstance(item, Barrier) else item.num_rows for item in rig.take()]
        assert kinds == [1, 1, Barrier(7, source=3), 1, 1]


async def test_a_checkpoint_does_not_wait_for_credits_or_policies():
    async with Rig(FOREVER) as rig:
        rig.actor.request_checkpoint(0)
        await until_blocked()
        assert rig.take() == [Barrier(0, 3)]
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.actor.request_checkpoint(1)
        await until_blocked()
        assert rig.take() == [Barrier(1, 3)]


async def test_incomplete_trajectories_continue_over_a_checkpoint():
    rig = await walking()
    rig.grant(Walker=8)
    await asyncio.sleep(2.5)
    rig.actor.request_checkpoint(0)
    await asyncio.sleep(10)
    barrier, batch = rig.take()
    assert isinstance(barrier, Barrier)
    assert batch.lengths.tolist() == [4, 4]
    await rig.__aexit__()


async def deterministic_stretch(caps, resumed_at=-1):
    """What comes after checkpoint 0, in a run that used up `caps` before it or in one that goes on from it."""
    rig = Rig(Cast("Walker", agents=2, longest=9, gap=2), resets=True, resumed_at=resumed_at)
    async with rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await asyncio.sleep(100)
        for cap in caps:
            rig.grant(Walker=cap)
            await asyncio.sleep(100)
        before = rig.take()
        if resumed_at < 0:
            rig.actor.request_checkpoint(0)
            await until_blocked()
            assert rig.take() == [Barrier(0, 3)]
            assert rig.ticks == rig.groups[0].tick
        used = rows(before)
        rig.grant(Walker=used + 20)
        await asyncio.sleep(100)
        return [batch.rows["log_probs"].tolist() for batch in rig.take()]


async def test_a_resumed_deterministic_run_equals_an_uninterrupted_one():
    uninterrupted = await deterministic_stretch([7])
    assert uninterrupted == await deterministic_stretch([13, 31])
    assert uninterrupted == await deterministic_stretch([], resumed_at=0)
    assert uninterrupted != await deterministic_stretch([], resumed_at=1)


async def test_a_deterministic_run_makes_its_checkpoint_while_it_waits():
    """When a command comes is chance, and must not show."""
    async with Rig(FOREVER, resets=True) as rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=12)
        await asyncio.sleep(2.5)
        rig.actor.request_checkpoint(0)
        await asyncio.sleep(100)
        batch, barrier = rig.take()
        assert batch.num_rows == 12
        assert barrier == Barrier(0, 3)
        assert rig.asked[3] == ["Walker"]


async def test_a_stopped_actor_flushes_and_closes_its_environments():
    rig = await walking()
    rig.grant(Walker=1000)
    await asyncio.sleep(3.5)
    rig.actor.request_stop()
    assert rows(await rig.ended()) == 6
    assert rig.sender.closed
    assert rig.groups[0].closed == 1


async def test_a_stopped_actor_sends_a_requested_barrier_last():
    rig = await walking()
    rig.grant(Walker=1000)
    await asyncio.sleep(3.5)
    rig.actor.request_checkpoint(4)
    rig.actor.request_stop()
    batch, barrier = await rig.ended()
    assert batch.num_rows == 6
    assert barrier == Barrier(4, 3)


async def test_an_actor_stops_while_it_waits_for_policies_or_credits():
    async with Rig(FOREVER) as rig:
        rig.actor.request_stop()
        assert await rig.ended() == []
    rig = await walking()
    rig.actor.request_stop()
    assert await rig.ended() == []


async def test_a_cancelled_actor_closes_its_environments():
    rig = await walking()
    await rig.__aexit__()
    assert rig.groups[0].closed == 1


# Broken environments. -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["specs known at once", "specs known after reset"])
async def test_a_broken_environment_is_rebuilt_and_loses_only_incomplete_trajectories(late, caplog):
    async with Rig(FOREVER, restarts=RestartBudget(1, -1, 60.0), breaks_at={4}, late=late) as rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=20)
        await asyncio.sleep(100)
        assert len(rig.groups) == 2
        assert rig.groups[0].closed == 1
        agents = {agent for item in rig.take() for agent in item.trajectories["agent_ids"].tolist()}
        assert agents == {3, 4}, "those of the new group"
        said = r"the simulator crashed at tick 4 \(at .*\). Restarting it \(restart 1\); 6 steps"
        assert re.search(said, caplog.text.replace("\n", " "))
        assert rig.processor.emitted("Walker") == 20, "credits of the lost steps were used for others"


async def test_a_restarted_instance_loses_only_its_own_incomplete_trajectories(caplog):
    async with Rig(FOREVER, num_envs=2, loses_at={5: [1]}) as rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=30)
        await asyncio.sleep(20)
        items = rig.take()
        assert len(rig.groups) == 1
        (batch,) = items
        assert sorted(batch.lengths.tolist()) == [5, 5, 10, 10], "two of four begin at tick 5"
        assert not batch.truncated.any(), "nothing says that they ended"
        assert "8 steps of incomplete trajectories are lost" in caplog.text
        assert rig.processor.emitted("Walker") == 30


@pytest.mark.parametrize("resets", [False, True])
async def test_environments_that_end_normally_end_the_run_without_losing_steps(resets):
    async with Rig(FOREVER, ends_at=5, resets=resets) as rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=100)
        await asyncio.sleep(20)
        assert rig.ends == ["the simulator was switched off"]
        (batch,) = rig.take()
        assert (batch.num_rows, batch.truncated.tolist()) == (8, [True, True])
        rig.actor.request_checkpoint(0)
        rig.actor.request_stop()
        assert [type(item) for item in await rig.ended()] == [Barrier]
        assert rig.groups[0].closed == 1


async def test_the_steps_of_a_closing_instance_are_emitted():
    class Closing(CountingGroup):
        async def step(self, actions):
            stepping = super().step(actions)
            assert inspect.isawaitable(stepping), "it takes a second"
            result = await stepping
            return replace(result, closed=np.array([1], np.int32)) if self.tick == 4 else result

    async with Rig(FOREVER, group_class=Closing, num_envs=2) as rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=100)
        await asyncio.sleep(4.5)
        (batch,) = rig.take()
        assert (batch.num_trajectories, batch.truncated.all(), rig.ends) == (2, True, [])


async def test_an_actor_whose_environments_have_ended_returns_its_credits():
    async with Rig(FOREVER, ends_at=5) as rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=100)
        await asyncio.sleep(20)
        _, used, wants, gives_back = rig.asked
        assert (used, wants, gives_back) == ({"Walker": 8}, [], ["Walker"])
        before = len(rig.requests)
        rig.actor.receive_policy(policy_update("Walker", 1))
        await until_blocked()
        assert len(rig.requests) == before, "once is enough"


async def test_an_environment_that_breaks_too_often_ends_the_actor_with_both_reasons():
    rig = Rig(FOREVER, restarts=RestartBudget(1, -1, 60.0), breaks_at={2, 3})
    await rig.__aenter__()
    rig.actor.receive_policy(policy_update("Walker", 0))
    await until_blocked()
    rig.grant(Walker=20)
    message = r"the simulator crashed at tick 3 \(at .*\). It is not restarted again: it was restarted once"
    with pytest.raises(StageFailure, match=message):
        await rig.task
    assert rig.sender.closed


async def test_a_failing_restart_is_repeated_as_often_as_allowed():
    class Fragile(CountingGroup):
        def reset(self, seed=None):
            self.resets = getattr(self, "resets", 0) + 1
            if 0 < len(rig.groups) - 1 < 3:
                raise RuntimeError("no licence")
            return super().reset(seed)

    rig = Rig(FOREVER, restarts=RestartBudget(3, -1, 60.0), group_class=Fragile, breaks_at={2}, delay_s=None)
    async with rig:
        rig.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        rig.grant(Walker=20)
        await until_blocked()
        assert len(rig.groups) == 4
        assert rig.processor.emitted("Walker") == 20


async def test_seeds_of_stretches_and_restarts_differ():
    seeds = []
    for resumed_at in (-1, 0, 1):
        restarts = RestartBudget(-1, -1, 60.0)
        async with Rig(FOREVER, restarts=restarts, breaks_at={2, 3}, resumed_at=resumed_at) as rig:
            rig.actor.receive_policy(policy_update("Walker", 0))
            await until_blocked()
            rig.grant(Walker=20)
            await asyncio.sleep(100)
            seeds += [seed for group in rig.groups for seed in group.seeds]
    assert len(set(seeds)) == len(seeds) == 9
    assert all(0 <= seed < 2**31 for seed in seeds)
