"""Leagues of several behaviours of one game, and what they are together."""

from __future__ import annotations

import pytest

from headrace.config import ConfigError, load_config
from headrace.config.league_game import league_game

FILE = """\
environment: {kind: open_spiel, game: kuhn_poker, behaviors: {player_0: Attack, player_1: Defence}}
behaviors:
  Attack:
    trainer_type: ppo
    max_steps: 4500
    league:
      iterations: 4
      members: [{use: random}]
      learners:
        main: {matches: [{match: self}, {match: pfsp, against: [spoiler, random]}]}
        second: {reset: {to: main}, freeze: {first: false}}
  Defence:
    trainer_type: ppo
    max_steps: 9000
    league:
      iterations: 4
      members: [{use: random}]
      learners:
        main: {matches: [{match: newest, against: second}]}
        spoiler: {matches: [{match: newest}]}
"""


def loaded(tmp_path, text=FILE):
    path = tmp_path / "league.yaml"
    path.write_text(text)
    return load_config(path)


def test_learners_and_brains_of_all_behaviours_have_unique_keys(tmp_path):
    game = league_game(loaded(tmp_path))
    learners = ["Attack.main", "Attack.second", "Defence.main", "Defence.spoiler"]
    assert game.home == "Attack"
    assert [*game.learners.items()] == [(name, name) for name in learners]
    assert [*game.settings.learners] == learners
    assert {game.sides[name] for name in learners[2:]} == {"Defence"}
    assert game.brains == {"Attack.random": ("Attack", 0), "Defence.random": ("Defence", 0)}
    assert [member.name for member in game.settings.members] == [*game.brains]
    assert game.learner_name("Attack.gone") == "Attack.gone"


def test_opponents_are_those_of_the_other_behaviour_and_steps_follow_from_each_one_s(tmp_path):
    game = league_game(loaded(tmp_path))
    found = game.settings.learners
    assert found["Attack.main"].matches[1].against == ("Defence.spoiler", "Defence.random")
    assert found["Defence.main"].matches[0].against == ("Attack.second",)
    assert found["Attack.second"].reset.to == "Attack.main"
    assert (found["Attack.main"].freeze.at_most, found["Defence.main"].freeze.at_most) == (1000, 2000)


def test_the_league_of_one_behaviour_alone_keeps_its_names(tmp_path):
    text = FILE[: FILE.index("  Defence:")].replace(", against: [spoiler, random]", "")
    game = league_game(
        loaded(tmp_path, text.replace("kuhn_poker, behaviors: {player_0: Attack, player_1: Defence}", "kuhn_poker"))
    )
    assert (game.home, game.sides, [*game.settings.learners]) == ("Attack", {}, ["main", "second"])
    assert game.learners == {"main": "Attack.main", "second": "Attack.second"}
    assert game.keys == {"Attack.main": "main", "Attack.second": "second"}
    assert game.learner_name("gone") == "Attack.gone"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("against: second", "against: spoiler", "0.against.0: 'spoiler' is not a possible opponent here; expected"),
        ("[spoiler, random]", "second", "1.against.0: 'second' is not a possible opponent here; expected 'main',"),
        ("iterations: 4", "payoff: mean_return", "behaviors.Defence.main.league.payoff: 'win_rate' here, but"),
        ("iterations: 4", "iterations: 4\n      learning: turns", "league.learning: 'all' here, but 'turns' in the"),
        ("Third", "", "behaviors.Third: has no league, but Attack"),
        (
            "max_steps: 4500",
            "max_steps: 4500\n  Third: {trainer_type: ppo, league: psro}",
            "league.meta_solver: 'nash' supports games of one or two behaviours, but 3 have leagues",
        ),
    ],
)  # fmt: skip
def test_league_settings_that_conflict_with_other_behaviours_are_refused(tmp_path, old, new, expected):
    if old == "Third":
        text = FILE + "  Third: {trainer_type: ppo}\n"
    elif "Third" in new:
        text = FILE[: FILE.index("  Attack:")] + "".join(
            f"  {name}: {{trainer_type: ppo, league: psro}}\n" for name in ("Attack", "Defence", "Third")
        )
    else:
        assert old in FILE
        text = FILE.replace(old, new, 1)
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert expected in str(refused.value)
