"""From an id to environments, with what can be wrong on the way."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from small_zoo import Counting, Crowd

from headrace.config import EnvironmentSettings
from headrace.stages.environments.factory import chain_wrappers
from headrace.stages.environments.pettingzoo.instances import ParallelInstance, TurnInstance, api_of
from headrace.stages.environments.pettingzoo.making import make_instances, maker_of
from headrace.stages.errors import BrokenEnvironmentError, LoadError, StageError

MODULE = """
from small_zoo import Counting, Crowd

def parallel_env(reward=1.0):
    return Crowd({"a": (0, 2, reward)})

def env(target=4):
    return Counting(target)
"""
TWO = {"a": (0, 2, 0.0)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "meadow_v2.py").write_text(MODULE)
    (tmp_path / "checkers_v1.py").write_text("from small_zoo import Counting as env")
    (tmp_path / "nothing_v1.py").write_text("number = 5")
    (tmp_path / "needy_v1.py").write_text("import pygame_of_old")
    (tmp_path / "hungry_v1.py").write_text("import pettingzoo.utils")
    (tmp_path / "zoo_package").mkdir()
    (tmp_path / "zoo_package" / "__init__.py").write_text("")
    (tmp_path / "zoo_package" / "meadow_v3.py").write_text(MODULE)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0].endswith(("_v1", "_v2", "zoo_package"))]:
        del sys.modules[name]


def maker(env_id, folder, api="auto"):
    return maker_of(env_id, api, folder, f"PettingZoo environment '{env_id}'")


@pytest.mark.parametrize(
    ("env_id", "api", "expected"),
    [
        ("meadow_v2", "auto", Crowd),
        ("meadow_v2", "parallel", Crowd),
        ("meadow_v2", "aec", Counting),
        ("zoo_package.meadow_v3", "auto", Crowd),
    ],
)
def test_a_module_makes_an_environment_of_the_requested_api(folder, env_id, api, expected):
    assert isinstance(maker(env_id, folder, api)(), expected)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("nothing_v1", r"module 'nothing_v1' has neither parallel_env\(\) nor env\(\), so it is not a PettingZoo"),
        ("meadow_v3", r"no module named 'meadow_v3' "),
        ("needy_v1", r"importing 'needy_v1' raised ModuleNotFoundError: No module named 'pygame_of_old'"),
    ],
)
def test_an_invalid_module_is_reported(folder, env_id, message):
    with pytest.raises(LoadError, match=message):
        maker(env_id, folder)


def test_a_missing_api_is_reported(folder):
    with pytest.raises(
        StageError, match=r"environment\.api: it has no parallel_env\(\); use 'aec', or leave environment\.api out"
    ):
        maker("checkers_v1", folder, "parallel")


@pytest.mark.parametrize(
    "env_id", ["pettingzoo.classic.chess_v6", "mpe2.simple_tag_v3", "classic/chess_v6", "hungry_v1"]
)
def test_how_to_install_pettingzoo_is_reported(folder, env_id, monkeypatch):
    class Uninstalled:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name in ("pettingzoo", "mpe2"):
                raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] in ("pettingzoo", "mpe2")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Uninstalled, *sys.meta_path])

    with pytest.raises(
        LoadError, match=r"not installed; install it with: python -m pip install \"headrace\[pettingzoo\]\""
    ):
        maker(env_id, folder)


def registry(monkeypatch, **contents):
    """A PettingZoo with these registries."""
    library: Any = ModuleType("pettingzoo")
    library.__version__ = "1.99"
    library.parallel_registry = contents.get("parallel", {})
    library.aec_registry = contents.get("aec", {})

    def spec(kind, env_id):
        return getattr(library, f"{kind}_registry")[env_id]

    library.spec = spec
    library.make = lambda kind, env_id, **options: spec(kind, env_id)(**options)
    monkeypatch.setitem(sys.modules, "pettingzoo", library)
    return library


def test_a_name_with_a_slash_is_looked_up_in_pettingzoos_registry(monkeypatch):
    both = {"family/meadow-v2": lambda **options: Crowd(TWO)}
    registry(monkeypatch, parallel=both, aec={"family/meadow-v2": Counting, "family/checkers-v1": Counting})

    assert isinstance(maker("family/meadow-v2", None)(), Crowd)
    assert isinstance(maker("family/meadow-v2", None, "aec")(target=3), Counting)
    assert isinstance(maker("family/checkers-v1", None)(), Counting)
    with pytest.raises(LoadError, match="registered this environment; did you mean 'family/checkers-v1'"):
        maker("family/chequers-v1", None)
    with pytest.raises(LoadError, match=r"this environment with environment.api: parallel; available:"):
        maker("family/checkers-v1", None, "parallel")


def test_packages_that_a_registered_environment_needs_are_reported(monkeypatch):
    def needs(**options):
        raise ImportError("install chess")

    registry(monkeypatch, aec={"classic/chess-v6": needs})

    with pytest.raises(ImportError, match="install chess"):
        maker("classic/chess-v6", None)()


def test_instances_are_of_their_api():
    (crowd, other) = make_instances(Crowd(TWO), lambda: Crowd(TWO), 2, "auto", "Zoo", None)
    (counting,) = make_instances(Counting(), Counting, 1, "aec", "Zoo", None)

    assert isinstance(crowd, ParallelInstance)
    assert isinstance(counting, TurnInstance)
    assert crowd.env is not other.env


def test_environments_are_closed_if_a_later_one_fails():
    def failing():
        raise OSError("no licence")

    first = Crowd(TWO)
    with pytest.raises(BrokenEnvironmentError, match="Zoo raised OSError: no licence"):
        make_instances(first, failing, 2, "auto", "Zoo", None)
    assert first.closed == 1


def test_objects_that_are_not_environments_are_reported():
    with pytest.raises(LoadError, match=r"Zoo returned an int; expected a pettingzoo\.ParallelEnv, an AECEnv"):
        make_instances(5, lambda: 5, 1, "auto", "Zoo", None)
    assert api_of(5) is None


@pytest.mark.parametrize(
    ("env", "api", "convert"), [(Counting(), "parallel", "aec_to_parallel"), (Crowd(TWO), "aec", "parallel_to_aec")]
)
def test_the_wrong_api_is_reported_with_the_conversion(env, api, convert):
    with pytest.raises(StageError, match=rf"environment\.api: its API is .*, not '{api}'.*conversions:{convert}"):
        make_instances(env, lambda: env, 1, api, "Zoo", None)


class Doubled(Crowd):
    """A wrapper that doubles rewards."""

    def __init__(self, env, times=2.0):
        super().__init__({agent: (first, last, times * reward) for agent, (first, last, reward) in env.script.items()})


def wrap_of(*wrappers):
    asked = [{"use": f"{__name__}:{name}", "with": arguments} for name, arguments in wrappers]
    settings = EnvironmentSettings(kind="pettingzoo", id="zoo", wrappers=asked)
    return chain_wrappers(settings, None, "Zoo", lambda env: api_of(env) is not None, "a PettingZoo environment")


def test_wrappers_wrap_each_environment_the_innermost_first():
    wrap = wrap_of(("Doubled", {}), ("Doubled", {"times": 5.0}))

    instances = make_instances(Crowd({"a": (0, 2, 1.0)}), lambda: Crowd({"a": (0, 2, 3.0)}), 2, "auto", "Zoo", wrap)

    assert [instance.env.script["a"][2] for instance in instances] == [10.0, 30.0]
