"""Who gets which policy."""

from __future__ import annotations

import pytest
from fakes import policy_update

from headrace.queues.messages import Assignment, Matchup
from headrace.stages.publisher import PolicyPublisher, PublisherPort

HOME, AWAY = "Ball?team=0", "Ball?team=1"


@pytest.fixture
def sent():
    return []


@pytest.fixture
def publisher(sent):
    made = PolicyPublisher(
        PublisherPort(
            lambda update: sent.append((update.behavior_id, update.snapshot, update.version)),
            lambda assignment: sent.append(assignment.generation),
        )
    )
    for behavior_id in (HOME, AWAY, "Walker"):
        made.add_behavior(behavior_id)
    return made


def publish(publisher, update):
    assert list(publisher.process(update)) == []


def test_a_trainer_s_policy_goes_to_every_behaviour_id_of_its_name(publisher, sent):
    publish(publisher, policy_update("Ball", 3))
    assert sent == [(HOME, -1, 3), (AWAY, -1, 3)]


def test_a_policy_for_one_behaviour_id_goes_only_to_that_id(publisher, sent):
    publish(publisher, policy_update(AWAY, 3))
    assert sent == [(AWAY, -1, 3)]


def test_an_assignment_goes_out_after_the_policies_that_it_names(publisher, sent):
    assignment = Assignment(4, 0, {HOME: (-1, 3), AWAY: (1, 2)}, 1)
    publisher.publish_matchup(Matchup(assignment, (policy_update(HOME, 3), policy_update(AWAY, 2, snapshot=1))))
    assert sent == [(HOME, -1, 3), (AWAY, 1, 2), 4]
    assert publisher.assignment is assignment


def test_an_actor_that_comes_later_is_given_what_was_last_sent(publisher):
    publish(publisher, policy_update(HOME, 3))
    publish(publisher, policy_update(HOME, 4))
    (update,) = publisher.newest_for(HOME)
    assert (update.behavior_id, update.version) == (HOME, 4)


def test_a_team_that_appears_later_is_given_the_policy_of_its_name(publisher):
    publish(publisher, policy_update("Ball", 3))
    publisher.add_behavior("Ball?team=2")
    (update,) = publisher.newest_for("Ball?team=2")
    assert (update.behavior_id, update.version) == ("Ball?team=2", 3)


def test_a_team_that_appears_later_is_not_given_a_snapshot_as_the_newest_policy(publisher):
    publish(publisher, policy_update(HOME, 3, snapshot=1))
    assert publisher.newest_for(AWAY) == []


def test_the_publisher_keeps_copies(publisher):
    update = policy_update("Walker", 3)
    publish(publisher, update)
    update.weights[:] = 99
    assert publisher.newest_for("Walker")[0].weights.tolist() == [3.0]
