"""A game gets environment parameters at its start, and later by calls where the settings name a method."""

from __future__ import annotations

from headrace.stages.environments.engines.godot.game import ParameterCalls
from headrace.stages.environments.parameters import EnvironmentParameters, EpisodeParameters


def parameters(generation=0, **values):
    found = EpisodeParameters()
    found.set_instances(2)
    found.receive(EnvironmentParameters(generation, values))
    return found


def test_without_parameters_the_game_gets_no_calls():
    told = ParameterCalls(0, None, {"a": "set_{value}"}, "game")
    assert told.at_start() == {}
    assert told.calls() == []


def test_values_are_sent_at_the_start_and_then_only_changes():
    source = parameters(a=1.0, b=2.0)
    told = ParameterCalls(1, source, {"a": "set_a_{value}"}, "game")
    assert told.at_start() == {"a": 1.0, "b": 2.0}
    assert told.calls() == []
    source.receive(EnvironmentParameters(1, {"a": -0.5, "b": 2.0}))
    assert told.calls() == ["set_a_minus_0_5"]
    assert told.generation == 1
    assert told.calls() == []


def test_a_change_without_a_method_is_warned_of_once(caplog):
    source = parameters(a=1.0)
    told = ParameterCalls(0, source, {}, "Godot worker 0")
    told.at_start()
    for generation in (1, 2):
        source.receive(EnvironmentParameters(generation, {"a": float(generation + 1)}))
        assert told.calls() == []
    assert len(caplog.messages) == 1
    assert "Godot worker 0: the environment parameter 'a' is now 2" in caplog.text
    assert "environment.calls" in caplog.text
