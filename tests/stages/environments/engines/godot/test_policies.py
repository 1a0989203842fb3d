"""A policy's name is its agents' behaviour and team, unless the YAML maps it."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.config import RoleSettings
from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.godot.messages import (
    AgentSpaces,
    Announcement,
    assign_agents,
    behaviors_of_agents,
)

SEEN = {"obs": {"space": "box", "size": [2]}}
MOVE = {"move": {"size": 2, "action_type": "continuous"}}


def announced(*policies, sizes=()):
    observed = [{"obs": {"space": "box", "size": [size]}} for size in sizes] or [SEEN] * len(policies)
    return Announcement(
        tuple(AgentSpaces(name, seen, MOVE) for name, seen in zip(policies, observed, strict=True)), True
    )


def behaviors(policies, roles=None, unnamed=None, listed=()):
    roles = {name: RoleSettings(**role) for name, role in (roles or {}).items()}
    return behaviors_of_agents(announced(*policies), "game", roles, unnamed, listed)


def test_names_and_teams_are_those_of_the_game():
    assert behaviors(["Duel?team=0", "Duel?team=1", "Ball"]) == [("Duel?team=0", 0), ("Duel?team=1", 0), ("Ball", 0)]


def test_agents_without_a_name_have_the_only_behaviours_unless_that_is_listed():
    assert behaviors(["shared_policy"], unnamed="Ball", listed=["Ball"]) == [("Ball", 0)]
    assert behaviors(["shared_policy"], listed=["A", "B"]) == [("shared_policy", 0)]
    assert behaviors(["shared_policy"], unnamed="shared_policy", listed=["shared_policy"]) == [("shared_policy", 0)]


def test_a_map_gives_behaviours_teams_and_groups():
    roles = {"red*": {"behavior": "Ball", "team": 0, "group": True}, "*": {"behavior": "Ball", "team": 1}}
    assert behaviors(["red_1", "red_2", "blue"], roles) == [("Ball?team=0", 1), ("Ball?team=0", 1), ("Ball?team=1", 0)]


def test_a_map_may_leave_the_name_and_give_each_agent_a_team():
    assert behaviors(["Duel", "Duel"], {"Duel": {"team": "each"}}) == [("Duel?team=0", 0), ("Duel?team=1", 0)]
    assert behaviors(["Duel?team=1"], {"Duel*": {"group": True}}) == [("Duel?team=1", 2)]


def test_a_pattern_that_matches_no_policy_is_refused():
    with pytest.raises(GameRefused, match=r"environment.behaviors.green matches no policy.*the policies are: red"):
        behaviors(["red", "red"], {"green": {"team": 1}})


@pytest.mark.parametrize("name", ["Boss?", "What?now", "Duel?team=red", "Duel?team=", "Duel?team=1&x=2", "?"])
def test_a_policy_name_with_a_question_mark_is_refused_unless_it_states_a_team(name):
    with pytest.raises(GameRefused, match="contains '\\?', after which only 'team=' and a number can follow; rename"):
        behaviors([name])
    assert behaviors([name], {"*": {"behavior": "Boss", "team": 1}}) == [("Boss?team=1", 0)]


def test_agents_are_gathered_by_behaviour_id():
    found = assign_agents(announced("A", "B", "A"), [("A", 0), ("B", 1), ("A", 0)], "auto", "game")
    assert [*found] == ["A", "B"]
    np.testing.assert_array_equal(found["A"][1], [0, 2])
    assert not found["A"][0].grouped
    assert found["B"][0].grouped
    assert found["B"][2] == 1


def test_a_mask_among_the_observations_is_refused():
    seen = {"obs": {"space": "box", "size": [2]}, "action_mask": {"space": "box", "size": [2]}}
    game = Announcement((AgentSpaces("A", seen, MOVE),), True)
    with pytest.raises(
        GameRefused, match=r"game, behaviour 'A': announces the observation 'action_mask': .*can't forbid"
    ):
        assign_agents(game, [("A", 0)], "auto", "game")


def test_agents_of_one_behaviour_have_equal_spaces_whatever_their_team():
    with pytest.raises(GameRefused, match=r"agents 0 and 1 share one behaviour, 'A'.*policy_name"):
        assign_agents(
            announced("A?team=0", "A?team=1", sizes=(2, 3)), [("A?team=0", 0), ("A?team=1", 0)], "auto", "game"
        )
    found = assign_agents(announced("A", "B", sizes=(2, 3)), [("A", 0), ("B", 0)], "auto", "game")
    assert found["B"][0].observations[0].shape == (3,)
