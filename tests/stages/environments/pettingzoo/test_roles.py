"""Which agent is what: `environment.behaviors`."""

from __future__ import annotations

import pytest
from gymnasium import spaces

from headrace.config import RoleSettings
from headrace.stages.environments.pettingzoo.teams import AgentRole, RoleAssignment
from headrace.stages.errors import StageError

SMALL, LARGE = (spaces.Box(0, 1, (2,)), spaces.Discrete(2)), (spaces.Box(0, 1, (3,)), spaces.Discrete(2))
TAG = ("adversary_0", "adversary_1", "adversary_2", "agent_0")


def assign(agents, behavior="", everybody=True, spaces_of=lambda agent: SMALL, apart=None, **roles):
    settings = {pattern: RoleSettings(**said) for pattern, said in roles.pop("by", {}).items()}
    assignment = RoleAssignment(settings, behavior, spaces_of, "Zoo", apart)
    assignment.assign(agents, everybody=everybody)
    return assignment


def teams(assignment):
    return [role.team for role in assignment.roles.values()]


def test_without_a_map_agents_are_one_behaviour_and_a_team():
    assignment = assign(TAG, "Tag")

    assert set(assignment.roles.values()) == {AgentRole("Tag", 0)}
    assert not assignment.symmetric


def test_two_agents_with_the_same_behaviour_are_opponents():
    assert teams(assign(["player_0", "player_1"], "Four")) == [0, 1]
    assert teams(assign(["player_0", "player_1"], "Four", by={"player_*": {}})) == [0, 1]


def test_the_game_decides_whether_players_are_teams():
    players = ["player_0", "player_1", "player_2"]
    assert teams(assign(players, "All", apart=True)) == [0, 1, 2]
    assert teams(assign(players, "All", apart=True, by={"player_0": {"behavior": "First"}, "*": {}})) == [0, 1, 2]
    assert teams(assign(players, "All", apart=True, by={"player_0": {"team": 1}, "*": {"team": 0}})) == [1, 0, 0]
    assert teams(assign(players, "All", apart=True, by={"*": {"group": True}})) == [0, 0, 0]
    assert teams(assign(players[:2], "All", apart=False)) == [0, 0]


def test_two_agents_can_be_made_one_team():
    assert teams(assign(["paddle_0", "paddle_1"], "Pong", by={"*": {"team": 0}})) == [0, 0]


def test_two_agents_of_different_behaviours_are_not_taken_for_opponents():
    assignment = assign(["speaker_0", "listener_0"], by={"s*": {"behavior": "Speaker"}, "l*": {"behavior": "Listener"}})

    assert list(assignment.roles.values()) == [AgentRole("Speaker", 0), AgentRole("Listener", 0)]


def test_the_first_pattern_that_fits_counts():
    by = {"adversary_0": {"behavior": "Leader"}, "adversary_*": {"behavior": "Pack", "team": 0}}
    assignment = assign(TAG, by={**by, "*": {"behavior": "Prey", "team": 1, "group": True}})

    assert list(assignment.roles.values()) == [
        *(AgentRole("Leader", 0), AgentRole("Pack", 0), AgentRole("Pack", 0)),
        AgentRole("Prey", 1, grouped=True),
    ]


def test_team_each_makes_every_agent_a_team():
    assignment = assign(["a_0", "a_1", "a_2"], "A", by={"*": {"team": "each"}})

    assert teams(assignment) == [0, 1, 2]
    assert assignment.teams == 3
    assert assignment.symmetric


def test_two_agents_of_a_group_are_teammates():
    assignment = assign(["a_0", "a_1"], "A", by={"*": {"group": True}})

    assert teams(assignment) == [0, 0]
    assert all(role.grouped for role in assignment.roles.values())


def test_two_agents_of_groups_are_opponents_with_team_each():
    assignment = assign(["a_0", "a_1"], "A", by={"*": {"group": True, "team": "each"}})

    assert teams(assignment) == [0, 1]


@pytest.mark.parametrize(
    ("by", "alike"),
    [
        ({"r_*": {"team": 0}, "b_*": {"team": 1}}, True),
        ({"r_*": {"team": 0}, "b_*": {"team": 1, "behavior": "Other"}}, False),
    ],
)
def test_sides_are_alike_if_all_have_the_same_behaviours(by, alike):
    assert assign(["r_0", "r_1", "b_0"], "All", by=by).symmetric is alike


@pytest.mark.parametrize(
    ("by", "blamed", "message"),
    [
        (
            {"adversary_*": {}},
            (),
            r"none of 'adversary_\*' matches agent 'agent_0'; .* Add a line such as 'agent_\*', or",
        ),
        (
            {"adversry_*": {}, "*": {}},
            ("adversry_*",),
            r"behaviors\.adversry_\*: matches none of its agents; did you mean 'adversary_\*'",
        ),
        ({"*": {}, "agent_0": {}}, ("agent_0",), r"behaviors\.agent_0: earlier patterns match all its agents"),
        (
            {"ad*": {"team": 0}, "ag*": {"team": 2}},
            (),
            r"team 1 has no agents, but team 2 has; number the teams",
        ),
    ],
)
def test_maps_that_do_not_fit_are_reported_and_their_key_is_blamed(by, blamed, message):
    with pytest.raises(StageError, match=message) as caught:
        assign(TAG, "Tag", by=by)
    assert caught.value.key == ("environment", "behaviors", *blamed)


def test_a_role_without_a_behaviour_is_reported():
    with pytest.raises(StageError, match=r"behaviors\.\*: names no behaviour, and environment\.behavior is not set"):
        assign(TAG, by={"*": {"team": 0}})


def test_agents_of_one_behaviour_have_equal_spaces():
    by_name = {"adversary_0": LARGE, "adversary_1": LARGE, "adversary_2": LARGE, "agent_0": SMALL}
    advice = r"environment\.behaviors: \{'adversary_\*': Name1, 'agent_\*': Name2\}"

    with pytest.raises(
        StageError, match=rf"'adversary_0' and 'agent_0' would both be 'Tag', .* observations .*{advice}"
    ):
        assign(TAG, "Tag", spaces_of=by_name.__getitem__)


def test_an_agent_may_join_a_team_that_is_there():
    assignment = assign(
        ["a_0", "a_1", "b_0"], everybody=False, by={"a*": {"behavior": "A"}, "b*": {"behavior": "B", "team": 1}}
    )

    assert assignment.join("b_1") == AgentRole("B", 1)
    assert assignment.roles["b_1"].behavior == "B"


def test_a_new_agent_can_not_form_a_new_team():
    assignment = assign(["a_0", "a_1"], "A", everybody=False, by={"*": {"team": "each"}})

    with pytest.raises(StageError, match="agent 'a_2' joined in team each, which did not exist at the start"):
        assignment.join("a_2")
