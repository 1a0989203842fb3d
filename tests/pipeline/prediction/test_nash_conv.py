"""NashConv of policies in OpenSpiel's games: OpenSpiel's own values, of probabilities that are ours."""

from __future__ import annotations

import environment_requests
import numpy as np
import pytest
from predicted import MEMORY, saved

from headrace import PredictError, RunError, load_policy, nash_conv
from headrace.config import EnvironmentSettings

pyspiel = pytest.importorskip("pyspiel", reason="python -m pip install 'headrace[openspiel]'")
from open_spiel.python import policy as spiel_policies  # noqa: E402  # it needs pyspiel
from open_spiel.python.algorithms import cfr, exploitability, policy_aggregator  # noqa: E402


def uniform(name):
    return spiel_policies.UniformRandomPolicy(pyspiel.load_game(name))


@pytest.mark.parametrize(
    ("name", "value"), [("kuhn_poker", 0.916667), ("leduc_poker", 4.747222), ("matrix_brps", 16.666667)]
)
def test_uniform_play_has_the_published_values(name, value):
    assert nash_conv(uniform(name), name) == pytest.approx(value, abs=1e-6)


def test_an_equilibrium_has_none():
    solver = cfr.CFRSolver(pyspiel.load_game("kuhn_poker"))
    for _ in range(300):
        solver.evaluate_and_update_policy()
    found = nash_conv(solver.average_policy(), "kuhn_poker")
    assert found == pytest.approx(exploitability.nash_conv(pyspiel.load_game("kuhn_poker"), solver.average_policy()))
    assert 0 <= found < 0.02


def spec_of(game):
    """What a policy sees and does in a game."""
    settings = EnvironmentSettings(kind="open_spiel", game=game)
    group = environment_requests.group_of(settings, "Test", 1)
    group.reset(0)
    return next(iter(group.behavior_specs.values()))


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "tic_tac_toe"])
def test_a_policys_own_probabilities_count_under_masks(tmp_path, name):
    policy = load_policy(saved(tmp_path, spec_of(name)))
    if name == "tic_tac_toe":
        with pytest.raises(RunError, match="more than 9000 states"):
            nash_conv(policy, name, max_states=9000)
        return

    class Asked:
        """Asks one state at a time, and forbids what is not allowed itself."""

        def __init__(self):
            self.known = {}

        def action_probabilities(self, state, player_id=None):
            player, legal = state.current_player(), state.legal_actions()
            key = state.information_state_string(player)
            if key not in self.known:
                seen = np.array(state.information_state_tensor(player), np.float32)
                (chances,) = policy.distribution(seen).probabilities
                total = sum(chances[action] for action in legal)
                self.known[key] = {action: float(chances[action] / total) for action in legal}
            return self.known[key]

    game = pyspiel.load_game(name)
    expected = exploitability.nash_conv(game, Asked())
    assert nash_conv(policy, name) == pytest.approx(expected, abs=1e-5)
    assert nash_conv(str(policy.file), game) == nash_conv(policy, name)
    assert nash_conv([policy, uniform(name)], name) != pytest.approx(expected, abs=1e-3)


def test_policies_that_do_not_fit_are_refused(tmp_path):
    spec = spec_of("kuhn_poker")
    policy = load_policy(saved(tmp_path, spec))
    with pytest.raises(PredictError, match="30"):
        nash_conv(policy, "leduc_poker")
    with pytest.raises(RunError, match="already loaded"):
        nash_conv(policy, "kuhn_poker", checkpoint="last")
    with pytest.raises(RunError, match="has a memory"):
        nash_conv(saved(tmp_path, spec, step=800, **MEMORY), "kuhn_poker")
    with pytest.raises(PredictError, match="gives only actions"):
        nash_conv(saved(tmp_path, spec, ".onnx", step=900), "kuhn_poker")


class Always:
    """Plays the first or the last of the allowed actions."""

    def __init__(self, which):
        self.which = which

    def action_probabilities(self, state, player_id=None):
        legal = state.legal_actions(player_id)
        return {action: float(action == legal[self.which]) for action in legal}


def test_a_mixture_is_drawn_once_a_game():
    # Who passes never bets later: after a pass and a bet both play as they have begun.
    mixture = nash_conv([Always(0), Always(-1)], "kuhn_poker", weights=[3, 1])
    game = pyspiel.load_game("kuhn_poker")
    parts = [[Always(0), Always(-1)]] * 2
    expected = policy_aggregator.PolicyAggregator(game).aggregate([0, 1], parts, [[0.75, 0.25]] * 2)
    assert mixture == pytest.approx(exploitability.nash_conv(game, expected))

    class Mean(Always):
        def action_probabilities(self, state, player_id=None):
            passes, bets = (Always(which).action_probabilities(state, player_id) for which in (0, -1))
            return {action: 0.75 * passes[action] + 0.25 * bets[action] for action in passes}

    assert abs(nash_conv(Mean(0), "kuhn_poker") - mixture) > 0.05, "which is no mean of probabilities"
    assert nash_conv([Always(0), Always(-1)], "kuhn_poker", weights=[1, 0]) == pytest.approx(
        nash_conv(Always(0), "kuhn_poker")
    )


def test_players_can_have_their_own_policies():
    chance = uniform("kuhn_poker")
    each = nash_conv({0: Always(0), 1: [chance, Always(-1)]}, "kuhn_poker", weights={0: [1], 1: [1, 0]})
    assert each == pytest.approx(nash_conv({0: Always(0), 1: chance}, "kuhn_poker"))
    assert abs(each - nash_conv({0: chance, 1: Always(0)}, "kuhn_poker")) > 0.01


@pytest.mark.parametrize(
    ("policy", "game", "arguments", "message"),
    [
        ([], "kuhn_poker", {}, "list is empty"),
        ([Always(0)] * 2, "kuhn_poker", {"weights": [1]}, "one non-negative weight for each of 2 policies"),
        ([Always(0)] * 2, "kuhn_poker", {"weights": [0, 0]}, "not all 0"),
        ([Always(0)] * 2, "kuhn_poker", {"weights": [1, float("nan")]}, "non-negative"),
        ({0: Always(0)}, "kuhn_poker", {}, r"expected the players \[0, 1\] as keys, got \[0\]"),
        (Always(0), "kuhn_pokr", {}, "did you mean 'kuhn_poker'"),
        (Always(0), "kuhn_poker", {"options": {"player": 3}}, "did you mean 'players'"),
        (Always(0), "leduc_poker", {"max_states": 1000}, "more than 1000 states"),
        (Always(0), "bridge_uncontested_bidding", {}, "samples its chance events itself"),
        (Always(0), "backgammon", {}, "does not provide information states"),
        ("nowhere", "kuhn_poker", {}, "nowhere"),
    ],
)
def test_invalid_arguments_of_nash_conv_are_refused(policy, game, arguments, message):
    with pytest.raises(RunError, match=message):
        nash_conv(policy, game, **arguments)
