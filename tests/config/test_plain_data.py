"""Configurations as data from Python: what may be in them, and what is refused by its place."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.config import load_config
from headrace.config.errors import ConfigError
from headrace.paths import ROOT

ONE = {"behaviors": {"Ball": {"trainer_type": "ppo"}}}


class Corridor:
    """An environment, as far as its names go."""

    def reset(self):
        """Begin."""

    def step(self):
        """Go on."""


def test_data_and_overrides_make_the_configuration_that_a_file_makes(tmp_path: Path):
    file = tmp_path / "one.yaml"
    file.write_text("behaviors: {Ball: {trainer_type: ppo, max_steps: 1000}}\nenv_settings: {seed: 7}\n")
    data = {"behaviors": {"Ball": {"trainer_type": "ppo", "max_steps": 500}}, "env_settings": {"seed": 7}}
    assert load_config(data, ["behaviors.Ball.max_steps=1000"]).to_plain() == load_config(file).to_plain()


def test_numbers_of_numpy_tuples_paths_and_classes_are_written_as_yaml_has_them(tmp_path: Path):
    config = load_config(
        OrderedDict(
            behaviors={
                "Ball": {"trainer_type": "sac", "max_steps": np.int64(7), "hyperparameters": {"tau": np.float64(0.5)}}
            },
            environment={"kind": "gymnasium", "factory": Corridor, "wrappers": ()},
            checkpoint_settings={"results_dir": tmp_path},
        )
    )
    assert config.environment is not None
    assert config.environment.factory == f"{__name__}:Corridor"
    assert config.behaviors["Ball"].max_steps == 7
    assert config.checkpoint_settings.results_dir == str(tmp_path)


def test_the_data_is_left_as_it_is():
    data = {"behaviors": {"Ball": {"trainer_type": "ppo"}}}
    load_config(data, ["behaviors.Ball.max_steps=1000"])
    assert data == ONE


class Maker:
    """Makes environments by its methods, and when it is called."""

    def make(self):
        """Make one."""

    @classmethod
    def made(cls):
        """Make one without an object."""

    __call__ = make


def _within():
    def inner():
        pass

    class Inner:
        pass

    return inner, Inner


INNER, INNER_CLASS = _within()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: None, "is <function <lambda> .*, which .* 'my_env:make_env'"),
        (INNER, "is <function _within.<locals>.inner .*, which .* 'my_env:inner'"),
        (INNER_CLASS, "is <class .*_within.<locals>.Inner'>, which .* 'my_env:Inner'"),
        (partial(Corridor), "is functools.partial.*, which .* 'my_env:make_env'; .* 'options'"),
        (Maker().make, "is <bound method Maker.make of .*, which .* 'my_env:make'"),
        (Maker(), "is <.*Maker object .*, which .* 'my_env:make_env'"),
    ],
)
@pytest.mark.parametrize("section", ["factory", "wrappers"])
def test_objects_that_other_processes_can_not_import_are_refused_with_their_kind(given, words, section):
    value = {"factory": given} if section == "factory" else {"factory": Corridor, "wrappers": [{"use": given}]}
    with pytest.raises(ConfigError, match=rf"environment\.{section}.*: {words}") as raised:
        load_config({**ONE, "environment": {"kind": "gymnasium", **value}})
    assert "which other processes can't import; expected a class or function at the top level" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "name"), [(Maker.made, f"{__name__}:Maker.made"), (math.sqrt, "math:sqrt"), (Maker, f"{__name__}:Maker")]
)
def test_importable_objects_are_stored_as_module_and_name(given, name):
    config = load_config({**ONE, "environment": {"kind": "gymnasium", "factory": given}})
    assert config.environment is not None
    assert config.environment.factory == name


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {**ONE, "environment": {"factory": SimpleNamespace(reset=None, step=None)}},
            r"environment\.factory: contains namespace.*expected the class, or a function",
        ),
        (
            {**ONE, "env_settings": {"seed": object()}},
            r"env_settings\.seed: contains <object .*expected a value that YAML can hold",
        ),
        ({"behaviors": {1: {}}}, r"behaviors: has the key 1; expected text"),
        (
            {"behaviors": {"Ball": {"trainer_typo": "ppo"}}},
            r"behaviors\.Ball\.trainer_typo: .*did you mean 'trainer_type'",
        ),
    ],
)
def test_values_that_yaml_can_not_hold_are_refused_with_their_key(data, expected):
    with pytest.raises(ConfigError, match=expected):
        load_config(data)


@pytest.mark.lengthy
def test_a_function_defined_below_the_main_guard_is_refused(tmp_path):
    script = tmp_path / "started.py"
    script.write_text(
        "from headrace.config import ConfigError, load_config\ndef top(): pass\nif __name__ == '__main__':\n    def "
        "nested(): pass\n    for each in (top, nested):\n        try:\n            print(load_config({'behaviors': "
        "{'B': {}}, 'environment': {'kind': 'gymnasium', 'factory': each}}).environment.factory)\n        except "
        "ConfigError as error:\n            print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    named, refused = done.stdout.splitlines()
    assert named == "started:top"
    assert refused.startswith("environment.factory: is <function nested at ")
    assert ", defined below `if __name__ == '__main__':`, which other processes can't import" in refused
