"""The environment stage: asks the policies, steps the group, tells what happened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import (
    AGENT,
    DECISION,
    Cast,
    Counters,
    CountingGroup,
    EchoPolicy,
    RecordedStatistics,
    answer_to,
    at_once,
    policy_update,
)

from headrace.queues.messages import Assignment
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings, no_behavior
from headrace.stages.environments.protocol import StatisticValues, StepResult
from headrace.stages.errors import BrokenEnvironmentError, EnvironmentEnded, StageError
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.stage import StageContext

HOME, AWAY = "Ball?team=0", "Ball?team=1"


async def started(
    *casts,
    policies=True,
    self_play=False,
    first_agent_id=0,
    deterministic=no_behavior,
    seed=1,
    make_policy=EchoPolicy,
    **options,
):
    """A stage that has been reset, and the groups that it has built."""
    groups = []
    counters = Counters()

    def make_group():
        groups.append(CountingGroup(casts, counters=counters, **options))
        return groups[-1]

    stage = EnvironmentStage(
        make_group, PolicyMappings(make_policy, lambda name: self_play), first_agent_id, deterministic
    )
    stage.start(StageContext("environment"))
    await stage.reset(seed)
    if policies:
        for cast in casts:
            stage.update(policy_update(cast.behavior_id, 0))
    return stage, groups


def agents(step):
    return step.observations[0][:, 0].tolist()


async def test_a_step_contains_the_group_s_rows_and_the_decisions():
    stage, _ = await started(Cast("Walker", agents=3, shortest=2))
    (step,) = stage.decide()
    assert (step.behavior_id, step.ended, len(step.agent_ids)) == ("Walker", 0, 3)
    assert step.decisions.keys() == {"discrete_actions", "log_probs", "acted_version", "acted_snapshot"}
    assert step.policy_versions.tolist() == [0, 0, 0]
    assert step.learning.all()
    assert step.opponents.tolist() == [-1, -1, -1]
    assert not step.generations.any()
    assert not step.games


async def test_the_group_gets_the_actions_of_its_agents():
    stage, groups = await started(Cast("Walker", agents=3, gap=2), Cast("Swimmer", agents=2, period=3), num_envs=2)
    for _ in range(50):
        stage.decide()
        await stage.advance()  # the group compares
    assert groups[0].tick == 50


async def test_endings_come_first_and_bring_no_decision():
    stage, _ = await started(Cast("Walker", agents=2, longest=1))
    stage.decide()
    await stage.advance()
    (step,) = stage.decide()
    assert step.ended == 2
    assert len(step.agent_ids) == 4
    assert len(step.policy_versions) == len(step.decisions["discrete_actions"]) == 2
    assert len(step.terminated) == len(step.truncated) == 2


async def test_agent_ids_are_unique_across_actors():
    stage, _ = await started(Cast("Walker", agents=3), first_agent_id=1000)
    (step,) = stage.decide()
    assert step.agent_ids.tolist() == [1000 + agent for agent in agents(step)]


async def test_agent_ids_are_right_for_a_group_that_uses_its_array_again():
    """The contract lets a group write other ids into the array that it gave before."""

    class Reusing(CountingGroup):
        ids = np.empty(2, np.int64)

        def steps_of(self, behavior_id, endings, decisions):
            steps = super().steps_of(behavior_id, endings, decisions[:: -1 if self.tick % 2 else 1])
            self.ids[:] = steps.agent_ids
            return replace(steps, agent_ids=self.ids)

    stage = EnvironmentStage(
        lambda: Reusing([Cast("Walker", agents=2, shortest=9, longest=9)]), PolicyMappings(EchoPolicy), 1000
    )
    stage.start(StageContext("environment"))
    await stage.reset(0)
    stage.update(policy_update("Walker", 0))
    for _ in range(4):
        (step,) = stage.decide()
        assert step.agent_ids.tolist() == [1000 + agent for agent in agents(step)]
        await stage.advance()


async def test_masks_reach_the_policy_and_the_trajectory():
    stage, _ = await started(Cast("Walker", agents=2, masked=True))
    (step,) = stage.decide()
    assert step.decisions["action_masks"].tolist() == [[True, False]] * 2


async def test_a_newer_policy_decides_from_the_next_decision_on():
    stage, _ = await started(Cast("Walker"))
    stage.decide()
    stage.update(policy_update("Walker", 5))
    await stage.advance()
    assert stage.decide()[0].policy_versions.tolist() == [5]


async def test_deciding_again_takes_the_newer_policy_and_the_same_chance():
    stage, _ = await started(Cast("Walker", agents=4, shortest=3))
    (first,) = stage.decide()
    stage.update(policy_update("Walker", 5))
    (again,) = stage.decide(again=True)
    assert again.policy_versions.tolist() == [5] * 4
    assert np.array_equal(first.decisions["log_probs"], again.decisions["log_probs"])
    await stage.advance()
    (after,) = stage.decide()
    assert not np.array_equal(after.decisions["log_probs"], first.decisions["log_probs"])


async def test_acting_can_be_deterministic():
    casts = [Cast("Walker", agents=4), Cast("Runner", agents=3)]
    stage, _ = await started(*casts, deterministic=lambda name: name == "Walker")
    drawn = {step.behavior_id: step.decisions["log_probs"].any() for step in stage.decide()}
    assert drawn == {"Walker": False, "Runner": True}, "each behaviour as it was asked for"


async def test_the_seed_determines_everything():
    async def course(seed):
        stage, _ = await started(Cast("Walker", agents=3, longest=9, gap=3, newcomers=0.5), seed=seed)
        rows = []
        for _ in range(30):
            for step in stage.decide():
                rows += [step.observations[0].tolist(), step.decisions["log_probs"].tolist(), step.terminated.tolist()]
            await stage.advance()
        return rows

    assert await course(4) == await course(4)
    assert await course(4) != await course(5)


@pytest.mark.virtual_time
async def test_a_group_may_be_async():
    stage, groups = await started(Cast("Walker"), delay_s=lambda: 30.0)
    stage.decide()
    await stage.advance()
    assert groups[0].tick == 1


async def test_behaviours_that_appear_later_join():
    stage, _ = await started(Cast("Walker"), Cast("Swimmer", joins_at=2), policies=False)
    stage.update(policy_update("Walker", 0))
    assert list(stage.specs) == ["Walker"]
    for _ in range(2):
        assert stage.mappings.ready(stage.specs)
        stage.decide()
        await stage.advance()
    assert list(stage.specs) == ["Walker", "Swimmer"]
    assert not stage.mappings.ready(stage.specs)


async def test_statistics_are_reported_by_behaviour_with_their_aggregation():
    class Talkative(CountingGroup):
        def step(self, actions):
            result = at_once(super().step(actions))
            of_ball = {"Ball": {"Hits": StatisticValues((4.0,), "sum")}}
            return StepResult(
                result.steps, result.games, {"Goals": StatisticValues((1.0, 2.0), "sum")}, behavior_statistics=of_ball
            )

    statistics = RecordedStatistics()
    casts = [Cast(HOME), Cast(AWAY), Cast("Walker")]
    stage = EnvironmentStage(lambda: Talkative(casts), PolicyMappings(EchoPolicy))
    stage.start(StageContext("environment", statistics=statistics))
    await stage.reset(0)
    for cast in casts:
        stage.update(policy_update(cast.behavior_id, 0))
    stage.decide()
    await stage.advance()
    goals = {("Ball", "Goals"): [1.0, 2.0], ("Walker", "Goals"): [1.0, 2.0]}
    assert statistics.values == {**goals, ("Ball", "Hits"): [4.0]}, "hits are of one behaviour alone"
    assert set(statistics.hows.values()) == {"sum"}


async def test_restarted_instances_play_under_the_current_mapping():
    stage, _ = await started(Cast(HOME), Cast(AWAY), num_envs=2, game_length=10**6, self_play=True, loses_at={2: [1]})
    stage.mappings.assign(assignment(1, 0))
    stage.decide()
    lost = [(await stage.advance()).lost]
    stage.mappings.assign(assignment(2, 0))
    stage.decide()
    lost.append((await stage.advance()).lost)
    assert lost[0] is None
    assert lost[1].tolist() == [1]
    assert [game.generation for game in stage.mappings.games] == [1, 2]


async def test_a_group_may_close_asynchronously():
    class Slow(CountingGroup):
        async def close(self):
            self.closed += 1

    groups = [Slow([Cast("Walker")]), Slow([Cast("Walker")])]
    made = iter(groups)
    stage = EnvironmentStage(lambda: next(made), PolicyMappings(EchoPolicy))
    stage.start(StageContext("environment"))
    await stage.reset(0)
    await stage.restart(1)
    await stage.stop()
    assert [group.closed for group in groups] == [1, 1]


@pytest.mark.parametrize("error", [EnvironmentEnded("stopped"), StageError("cannot be used")])
async def test_ends_and_refusals_do_not_count_as_broken(error):
    class Ending(CountingGroup):
        def step(self, actions):
            raise error

    stage = EnvironmentStage(lambda: Ending([Cast("Walker")]), PolicyMappings(EchoPolicy))
    stage.start(StageContext("environment"))
    await stage.reset(0)
    with pytest.raises(type(error)) as raised:
        await stage.advance()
    assert raised.value is error


# Broken environments. ------------------------------------------------------------------------------------------------


async def test_an_environment_that_raises_is_broken_and_the_error_says_where():
    stage, _ = await started(Cast("Walker"), breaks_at={1})
    stage.decide()
    with pytest.raises(BrokenEnvironmentError, match=r"step\(\) failed: RuntimeError: the simulator crashed") as caught:
        await stage.advance()
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_base_exception_counts_as_broken():
    class PanicError(BaseException):
        """Like the panics of simulators in Rust."""

    class Panicking(CountingGroup):
        def reset(self, seed=None):
            raise PanicError("index out of bounds")

    stage = EnvironmentStage(lambda: Panicking([Cast("Walker")]), PolicyMappings(EchoPolicy))
    stage.start(StageContext("environment"))
    with pytest.raises(
        BrokenEnvironmentError, match=r"reset\(\) failed: PanicError: index out of bounds \(at .*:\d+, in"
    ):
        await stage.reset(0)


@pytest.mark.parametrize("late", [False, True], ids=["specs known at once", "specs known after reset"])
async def test_a_restart_rebuilds_the_group_and_keeps_the_policies(late):
    stage, groups = await started(Cast("Walker"), late=late)
    stage.update(policy_update("Walker", 7))
    await stage.restart(seed=9)
    assert [group.closed for group in groups] == [1, 0]
    assert groups[1].seeds == [9]
    assert stage.mappings.ready(stage.specs), "the policy that it has had will not be sent again"
    (step,) = stage.decide()
    assert step.policy_versions.tolist() == [7]
    await stage.advance()


async def test_a_group_that_fails_to_close_is_restarted():
    class Stuck(CountingGroup):
        def close(self):
            raise OSError("no such process")

    stage = EnvironmentStage(lambda: Stuck([Cast("Walker")]), PolicyMappings(EchoPolicy))
    stage.start(StageContext("environment"))
    await stage.reset(0)
    await stage.restart(1)
    assert stage.num_envs == 1


# Self-play. ----------------------------------------------------------------------------------------------------------


def assignment(generation, team, opponent=-1, home=(-1, 0), away=(-1, 0)):
    return Assignment(generation, team, {HOME: home, AWAY: away}, opponent)


async def playing(num_envs=2, game_length=4):
    stage, groups = await started(
        Cast(HOME), Cast(AWAY), self_play=True, num_envs=num_envs, game_length=game_length, policies=False
    )
    stage.update(policy_update(HOME, 0))
    stage.update(policy_update(AWAY, 0, snapshot=0))
    stage.mappings.assign(assignment(1, 0, 0, away=(0, 0)))
    return stage, groups


async def test_steps_are_stamped_with_who_learns_against_whom():
    stage, _ = await playing()
    home, away = stage.decide()
    assert home.learning.tolist() == [True, True]
    assert away.learning.tolist() == [False, False]
    for step in (home, away):
        assert step.generations.tolist() == [1, 1]
        assert step.opponents.tolist() == [0, 0]


async def test_games_are_played_to_their_end_under_the_mapping_they_began_with():
    stage, _ = await playing(num_envs=4)
    played = dict.fromkeys(range(4), 1)
    stage.update(policy_update(HOME, 1))
    stage.update(policy_update(AWAY, 1, snapshot=1))
    stage.mappings.assign(assignment(2, 0, 1, home=(-1, 1), away=(1, 1)))
    results = []
    for _ in range(12):
        home, away = stage.decide()
        for env in home.env_ids[: home.ended].tolist():
            played[env] = 2
        for step in (home, away):
            envs = step.env_ids[step.ended :].tolist()
            assert step.generations.tolist() == [played[env] for env in envs]
            assert step.opponents.tolist() == [played[env] - 1 for env in envs]
        snapshots = away.decisions["acted_snapshot"].tolist()
        assert snapshots == away.opponents.tolist(), "rows of two mappings are put together in their order"
        assert home.policy_versions.tolist() == [1] * 4
        assert home.decisions["acted_version"].tolist() == [1] * 4
        results += [] if not home.games else home.games["game_generation"].tolist()
        assert not away.games
        await stage.advance()
    assert results[:4].count(1) >= 1
    assert set(played.values()) == {2}


async def test_a_result_is_reported_for_the_learning_team_against_the_snapshot_it_met():
    stage, groups = await playing(num_envs=1, game_length=1)
    stage.decide()
    await stage.advance()
    outcome = float(groups[0].results[-1].outcomes[0, 0])
    home, away = stage.decide()
    told = {name: column.tolist() for name, column in home.games.items()}
    assert told == {"game_generation": [1], "game_team": [0], "game_opponent": [0], "game_outcome": [outcome]}
    assert not away.games


async def test_results_are_reported_once_even_if_the_tick_is_decided_again():
    stage, _ = await playing(num_envs=1, game_length=1)
    stage.decide()
    await stage.advance()
    assert stage.decide()[0].games
    await stage.advance()
    again = stage.decide()[0].games
    assert len(again["game_team"]) == 1


# Memory. -------------------------------------------------------------------------------------------------------------


class Rememberer(EchoPolicy):
    """Remembers agent (+ 1), decisions in the episode, last answer and snapshot that gave it, and checks all of it."""

    memory_size = 4
    previous_action_size = 1

    def act(self, observations, masks, random, deterministic=False, recall=None):
        (who,) = observations
        memory = recall.memories
        begun = who[:, DECISION] > 0
        assert np.array_equal(memory[:, 1], who[:, DECISION]), "what was remembered is not of this episode"
        assert np.array_equal(memory[:, 0], np.where(begun, who[:, AGENT] + 1, 0)), "nor of this agent"
        # The counting group's only branch has one choice: 1 is the one-hot of choice 0.
        assert np.array_equal(recall.previous_actions[:, 0], np.where(begun, memory[:, 2], 1.0))
        decision = super().act(observations, masks, random, deterministic)
        answers = answer_to(who)
        after = np.stack([who[:, AGENT] + 1, who[:, DECISION] + 1, answers, np.full(len(who), self.loaded.snapshot)], 1)
        recalled = Recall(after.astype(np.float32), answers[:, None].astype(np.float32))
        return Decision(decision.actions, {**decision.columns, "memories": memory}, recalled)


def check_memories(step):
    """The column holds what the agents remembered before they decided."""
    who, memory = step.observations[0][step.ended :], step.decisions["memories"]
    assert np.array_equal(memory[:, 1], who[:, DECISION])
    assert np.array_equal(memory[:, 0], np.where(who[:, DECISION] > 0, who[:, AGENT] + 1, 0))


async def test_agents_remember_within_their_episodes_as_they_come_and_go():
    cast = Cast("Walker", agents=5, longest=6, gap=2, newcomers=0.4)
    stage, _ = await started(cast, Cast("Swimmer", agents=2, period=3), make_policy=Rememberer, first_agent_id=10**12)
    recalled = begun = 0
    for _ in range(120):
        for step in stage.decide():
            check_memories(step)
            recalled += int(np.count_nonzero(step.decisions["memories"][:, 0]))
            begun += int(np.count_nonzero(step.observations[0][step.ended :, DECISION] == 0))
        await stage.advance()
    assert recalled > 100
    assert begun > 50


async def test_deciding_again_starts_from_the_same_memories():
    stage, _ = await started(Cast("Walker", agents=4, shortest=3), make_policy=Rememberer)
    for _ in range(12):
        (first,) = stage.decide()
        stage.update(policy_update("Walker", 5))
        for _ in range(2):
            (again,) = stage.decide(again=True)  # the policy checks what it is given
            assert np.array_equal(first.decisions["memories"], again.decisions["memories"])
        await stage.advance()


class Reborn(CountingGroup):
    """Counts agents, episodes and ticks from the start again whenever it is reset."""

    def reset(self, seed=None):
        self.counters = Counters()
        return super().reset(seed)


async def after_three_decisions(breaks_at=()):
    """A stage whose two agents have decided three times, the last time for a step that is still to come."""
    casts = [Cast("Walker", agents=2, shortest=9, longest=9)]
    groups = iter([Reborn(casts, breaks_at=set(breaks_at)), Reborn(casts)])
    stage = EnvironmentStage(lambda: next(groups), PolicyMappings(Rememberer))
    stage.start(StageContext("environment"))
    await stage.reset(0)
    stage.update(policy_update("Walker", 0))
    for _ in range(2):
        stage.decide()
        await stage.advance()
    assert stage.decide()[0].decisions["memories"][:, 1].tolist() == [2, 2]
    return stage


async def test_a_restart_after_a_breakdown_forgets_everything():
    stage = await after_three_decisions(breaks_at={3})
    with pytest.raises(BrokenEnvironmentError):
        await stage.advance()
    await stage.restart(2)
    (step,) = stage.decide()
    assert step.agent_ids.tolist() == [1, 2]
    assert not step.decisions["memories"].any()


async def test_memories_stay_with_their_agents_in_games_of_mixed_generations():
    stage, _ = await started(
        Cast(HOME), Cast(AWAY), self_play=True, num_envs=4, game_length=4, policies=False, make_policy=Rememberer
    )
    stage.update(policy_update(HOME, 0))
    stage.update(policy_update(AWAY, 0, snapshot=0))
    stage.mappings.assign(assignment(1, 0, 0, away=(0, 0)))
    stage.decide()
    await stage.advance()
    stage.update(policy_update(HOME, 1))
    stage.update(policy_update(AWAY, 1, snapshot=1))
    stage.mappings.assign(assignment(2, 0, 1, home=(-1, 1), away=(1, 1)))
    mixed, remembering = 0, set()
    for _ in range(12):
        for step in stage.decide():
            check_memories(step)
            memory = step.decisions["memories"]
            begun = memory[:, 0] > 0
            remembering |= {step.behavior_id} if begun.any() else set()
            assert np.array_equal(memory[begun, 3], step.decisions["acted_snapshot"][begun])
            mixed += len(set(step.generations.tolist())) > 1
        await stage.advance()
    assert mixed
    assert remembering == {HOME, AWAY}
