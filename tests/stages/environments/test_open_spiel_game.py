"""What is refused of OpenSpiel's games, by name. A module with the part of pyspiel that says so stands in for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from environment_requests import request_of

from headrace.config import EnvironmentSettings
from headrace.stages.environments.factory import make_group
from headrace.stages.environments.open_spiel import OpenSpielGame, find_game
from headrace.stages.errors import LoadError, StageError

KINDS = SimpleNamespace(
    Dynamics=SimpleNamespace(SIMULTANEOUS="at once", MEAN_FIELD="mean field", SEQUENTIAL="by turns"),
    Utility=SimpleNamespace(IDENTICAL="common", ZERO_SUM="zero sum"),
    RewardModel=SimpleNamespace(TERMINAL="at the end", REWARDS="always"),
    ChanceMode=SimpleNamespace(SAMPLED_STOCHASTIC="its own", DETERMINISTIC="none"),
)


class SpielError(RuntimeError):
    """As pyspiel's."""


def kind_of(**said):
    usual = {
        "short_name": "duel",
        "dynamics": "by turns",
        "utility": "zero sum",
        "reward_model": "at the end",
        "chance_mode": "none",
        "provides_information_state_tensor": True,
        "provides_observation_tensor": False,
        "parameter_specification": {"cards": 3, "bet": 1.5, "open": False},
    }
    return SimpleNamespace(**usual | said)


def game_of(shape=(4,), actions=2, **said):
    def numbered():
        if actions is None:
            raise SpielError("LegalActions unimplemented")
        return actions

    return SimpleNamespace(
        get_type=lambda: kind_of(**said),
        num_players=lambda: 2,
        information_state_tensor_shape=lambda: list(shape),
        num_distinct_actions=numbered,
        new_initial_state=lambda: SimpleNamespace(legal_actions_mask=lambda player: [1] * actions),
    )


@pytest.fixture(autouse=True)
def spiel(monkeypatch):
    """A pyspiel with one game, `duel`; its `made` are the parameters of those that were made."""
    made = []

    def load_game(name, parameters):
        if parameters.get("cards") == 99:
            raise SpielError("/project/duel.cc:7 cards <= 10\ncards = 99")
        made.append(parameters)
        return game_of()

    module = SimpleNamespace(
        GameType=KINDS,
        SpielError=SpielError,
        registered_games=lambda: [kind_of(), kind_of(short_name="truel", parameter_specification={})],
        game_parameters_from_string=lambda text: {"name": text.partition("(")[0]},
        load_game=load_game,
        made=made,
    )
    monkeypatch.setitem(sys.modules, "pyspiel", module)
    return module


def test_without_the_package_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    settings = EnvironmentSettings(kind="open_spiel", game="kuhn_poker", behavior="Kuhn")
    with pytest.raises(
        LoadError, match=r"'kuhn_poker' needs the package open_spiel.*pip install \"headrace\[openspiel\]\""
    ):
        make_group(request_of(settings))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("deul", {}, "'deul': this game does not exist; did you mean 'duel'"),
        ("chess", {}, "this game does not exist; available: duel, truel"),
        ("nobodys_module:duel", {}, "nobodys_module"),
        ("duel", {"card": 3}, "does not accept 'card'; did you mean 'cards'"),
        ("truel", {"players": 3}, "does not accept 'players'; it accepts no parameters"),
        ("duel", {"cards": "3"}, "cards: expected a whole number, got a str: '3'"),
        ("duel", {"open": 1}, "open: expected true or false, got an int: 1"),
        ("duel", {"cards": 99}, "can't be created: cards <= 10 cards = 99; its parameters: bet, cards, open"),
    ],
)
def test_unknown_games_and_parameters_are_named_with_alternatives(name, options, message):
    with pytest.raises(StageError) as caught:
        find_game(name, options)
    assert message in str(caught.value)
    assert caught.value.key[:2] in [("environment", "game"), ("environment", "options")]


def test_an_integer_is_accepted_for_a_float_parameter(spiel):
    find_game("duel", {"bet": 2, "cards": 4})
    assert repr(spiel.made) == "[{'bet': 2.0, 'cards': 4}]"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"dynamics": "mean field"}, "mean field game"),
        ({"provides_information_state_tensor": False}, "neither an information state tensor nor an observation tensor"),
        ({"chance_mode": "its own"}, "has no rng_seed"),
        ({"actions": None}, "LegalActions unimplemented"),
    ],
)
def test_unsupported_kinds_of_games_are_refused(said, message):
    with pytest.raises(StageError, match=message):
        OpenSpielGame(game_of(**said), "the game")


def test_rng_seed_is_not_an_option():
    with pytest.raises(StageError, match="the run sets rng_seed from its own seed"):
        find_game("duel", {"rng_seed": 1})
