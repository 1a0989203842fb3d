"""The two sides of the ghost stage."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fakes import RecordedStatistics, policy_update, trajectories

from headrace.config import SelfPlaySettings
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.stages.ghost import GhostController, GhostPolicies, GhostStage
from headrace.stages.loop import StageHooks, StageRunner
from headrace.stages.stage import StageContext

HOME, AWAY = "Ball?team=0", "Ball?team=1"


@pytest.fixture
def published():
    return []


@pytest.fixture
def controller():
    made = GhostController(np.random.default_rng(0))
    settings = SelfPlaySettings(save_steps=100, team_change=300, swap_steps=10, play_against_latest_model_ratio=0.0)
    made.add_history("Ball", settings)
    made.add_behavior(HOME)
    made.add_behavior(AWAY)
    made.receive_policy(policy_update("Ball", 0))
    return made


@pytest.fixture
def stage(controller, published):
    return GhostStage(controller, published.append)


def test_trajectories_of_the_learning_team_pass_as_they_are(stage, published):
    batch = trajectories([3, 4], HOME, generation=1)
    assert list(stage.process(batch)) == [batch]
    assert not published


def test_trajectories_of_ghosts_are_dropped_and_counted(stage, controller):
    assert list(stage.process(trajectories([3, 4], AWAY, generation=1, learning=False))) == []
    assert controller.histories["Ball"].counters.ghost_step == 7


def test_only_the_learning_part_of_a_mixed_batch_passes(stage, controller):
    (passed,) = stage.process(trajectories([3, 4, 5], HOME, generation=1, learning=[True, False, True]))
    assert passed.lengths.tolist() == [3, 5]
    assert controller.histories["Ball"].counters.ghost_step == 4


def test_enough_ghost_steps_swap_the_opponents_at_once(stage, published):
    list(stage.process(trajectories([11], AWAY, generation=1, learning=False)))
    assert [matchup.assignment.generation for matchup in published] == [2]


def test_a_batch_of_games_is_rated_and_dropped(stage, controller):
    statistics = RecordedStatistics()
    stage.start(StageContext("ghost", statistics=statistics))
    list(stage.process(trajectories([11], AWAY, generation=1, learning=False)))
    assert list(stage.process(trajectories([], HOME, games=[(2, 0, 0, 1.0)]))) == []
    assert statistics.values == {("Ball", "Self-play/ELO"): [1208.0]}
    assert controller.elo("Ball") == 1208.0


def test_credits_of_rejected_trajectories_are_returned(stage, controller):
    """A stale trajectory carried credits, for its team was learning when it was played."""

    async def run():
        receiver, sender = AgentManagerQueue("in", 5), AgentManagerQueue("out", 5)
        receiver.put_nowait(trajectories([3, 4], HOME, generation=1))
        receiver.put_nowait(trajectories([5], AWAY, generation=2))
        receiver.close()
        hooks = StageHooks(lambda behavior, source, amount: returned.append((behavior, source, amount)))
        await StageRunner(stage, receiver, sender, StageContext("ghost"), hooks).run()
        return sender.qsize()

    returned = []
    controller.receive_policy(policy_update("Ball", 4, 400))
    assert asyncio.run(run()) == 1
    assert returned == [("Ball", 0, 7)]


def test_the_policy_side_addresses_the_learning_team(controller, published):
    policies = GhostPolicies(controller, published.append)
    (update,) = policies.process(policy_update("Ball", 1, 100))
    assert update.behavior_id == HOME
    assert not published


def test_the_policy_side_publishes_a_rotation_instead(controller, published):
    policies = GhostPolicies(controller, published.append)
    assert list(policies.process(policy_update("Ball", 4, 400))) == []
    assert published[0].assignment.learning_team == 1
