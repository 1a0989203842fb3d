"""The section `league`: presets, what follows from `max_steps`, and what is refused."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from headrace.config.errors import ConfigError, nowhere
from headrace.config.fields import Settings
from headrace.config.league import PRESETS, LeagueSettings, expanded
from headrace.config.validation import check


class Holder(Settings):
    """A section that has a league."""

    league: LeagueSettings


def mistakes(league: object) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        check(Holder, {"league": league}, nowhere)
    return [str(mistake) for mistake in refused.value.mistakes]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_the_same_as_the_keys_that_it_stands_for(preset):
    league = LeagueSettings.model_validate(preset).for_steps(1_000_000)
    plain = expanded(league)
    assert "preset" not in plain["league"]
    assert {"weighting", "above"} & plain["league"]["learners"]["main"]["matches"][-1].keys() <= {"weighting"}
    assert LeagueSettings.model_validate(yaml.safe_load(yaml.safe_dump(plain))["league"]) == league


def test_alphastar_has_the_constants_of_the_published_pseudocode():
    league = LeagueSettings.model_validate("alphastar")
    assert list(league.learners) == ["main", "main_exploiter", "league_exploiter"]
    main, exploiter, league_exploiter = league.learners.values()
    shares = [(share.match, share.weight) for share in main.matches]
    assert shares == [("pfsp", 0.5), ("verify", 0.15), ("self", 0.35)]
    assert (main.matches[0].weighting, league_exploiter.matches[0].weighting) == ("squared", "linear_capped")
    assert (exploiter.matches[0].match, exploiter.matches[0].against, exploiter.matches[0].above) == (
        "newest",
        ("main",),
        0.1,
    )
    assert [each.freeze.win_rate for each in league.learners.values()] == [0.7] * 3
    assert [each.freeze.first for each in league.learners.values()] == [True, False, False]
    assert main.reset is None
    assert (exploiter.reset.probability, league_exploiter.reset.probability) == (1.0, 0.25)
    assert league.decay == 0.99


def test_keys_go_over_those_of_a_preset_and_null_drops_a_learner():
    own = {"actors": 2, "hyperparameters": {"beta": 0.1}, "freeze": {"win_rate": 0.6}}
    league = LeagueSettings.model_validate(
        {"preset": "alphastar", "decay": 0.9, "learners": {"main": own, "league_exploiter": None}}
    )
    assert league.decay == 0.9
    assert list(league.learners) == ["main", "main_exploiter"]
    assert league.learners["main"].actors == 2
    assert league.learners["main"].own == {"hyperparameters": {"beta": 0.1}}
    assert (league.learners["main"].freeze.win_rate, league.learners["main"].freeze.first) == (0.6, True)
    assert expanded(league)["league"]["learners"]["main"]["hyperparameters"] == {"beta": 0.1}


@pytest.mark.parametrize(
    ("freeze", "steps"),
    [({}, (24_390, 48_780)), ({"after": 10}, (10, 20)), ({"at_most": 7}, (4, 7)), ({"after": 3, "at_most": 4}, (3, 4))],
)
def test_steps_of_freezing_follow_from_those_of_the_behaviour_if_they_are_not_given(freeze, steps):
    league = LeagueSettings.model_validate({"learners": {"main": {"freeze": freeze}}}).for_steps(1_000_000)
    found = league.learners["main"].freeze
    assert (found.after, found.at_most) == steps
    assert league.for_steps(5) == league


def test_a_learners_own_steps_go_over_those_of_the_behaviour():
    league = LeagueSettings.model_validate({"iterations": 4, "learners": {"main": {}, "second": {}}})
    found = league.for_steps({"main": 99, "second": 2}).learners
    assert (found["main"].freeze.at_most, found["second"].freeze.at_most) == (22, 1)


def test_the_league_of_a_learner_names_the_behaviour_of_the_environment():
    plain = LeagueSettings.model_validate("psro").of_learner("Kuhn", "main", {})
    assert plain["of"] == "Kuhn"
    assert LeagueSettings.model_validate(plain).of == "Kuhn"


@pytest.mark.parametrize(
    ("league", "expected"),
    [
        ("alfastar", "league: 'alfastar' is not a preset; expected 'alphastar', 'five', 'psro'; did you mean"),
        ({"preset": 3}, "league.preset: '3' is not a preset; expected 'alphastar', 'five', 'psro'"),
        ({"learners": {"a b": {}}}, "league.learners.a b: a learner's name can contain only letters, digits, '_' and"),
        ({"learners": {"start": {}}}, "league.learners.start: in `reset`, 'start' means the initial weights; "),
        ({"members": "random", "learners": {"random": {}}}, "league.learners.random: a member has this name; "),
        ({"members": [{"use": "random"}, {"use": "random"}]}, "league.members.1.use: 'random' is the name of several"),
        ({"learners": {"main": {"reset": {"to": "mian"}}}}, "league.learners.main.reset.to: 'mian' is not valid;"),
        (
            {"learners": {"main": {"matches": [{"match": "pfsp", "against": "mian"}]}}},
            "league.learners.main.matches.0.against.0: 'mian' is not a possible opponent here; expected 'main'; did "
            "you mean",
        ),
        (
            {"learners": {"main": {"matches": [{"match": "newest"}, {"match": "self"}]}}},
            "league.learners.main.matches.0.match: needs another learner, and the league has only this one; use 'self'",
        ),
        ({"learners": {"main": {"matches": [{"match": "meta"}]}}}, "league.learners.main.matches.0.match: needs"),
        (
            {"learners": {"main": {"matches": [{"match": "self", "weighting": "linear", "above": 0.2}]}}},
            "league.learners.main.matches.0.weighting: can't be combined with match 'self', only with pfsp; leave it "
            "out",
        ),
        ({"learners": {"main": {"freeze": {"after": 9, "at_most": 8}}}}, "league.learners.main.freeze.after: 9 is"),
        ({"learners": {"main": {"freeze": {"first": False}}}}, "league.learners.main.matches: no opponent exists at"),
        ({"learners": {}}, "league.learners: "),
        ({"rating": 1.0}, "league.rating: "),
    ],
)
def test_invalid_league_settings_are_refused_with_their_key(league, expected):
    assert any(mistake.startswith(expected) for mistake in mistakes(league)), mistakes(league)


def test_a_misspelt_key_of_a_learner_is_passed_on_to_the_check_of_the_behaviour():
    assert LeagueSettings.model_validate({"learners": {"main": {"actor": 2}}}).learners["main"].own == {"actor": 2}


def test_members_are_brains_of_any_kind_without_a_weight():
    league = LeagueSettings.model_validate({"members": [{"use": "random"}, {"use": "model.onnx", "name": "old"}]})
    assert [member.name for member in league.members] == ["random", "old"]
    with pytest.raises(ValidationError, match="weight"):
        LeagueSettings.model_validate({"members": [{"use": "random", "weight": 0.5}]})
