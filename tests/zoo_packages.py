"""What `tests/zoo/packages` holds: third-party packages with the versions that were tried, and their environments.

A file is one package:

    package: minigrid                       # its distribution
    pins: [minigrid==3.2.0, …]              # what was tried, beside constraints.txt or instead of it
    alone: why it does not go with constraints.txt; left out where it does
    absent: why it can't be installed; then nothing else follows
    all: {wrappers: […], behavior: {…}}     # what its environments share; each may say otherwise
    environments:
      - id: minigrid:MiniGrid-Empty-5x5-v0  # `environment` of a configuration, but for these keys:
        name: how the table calls it, instead of its id or factory
        behavior: a behaviour's settings, where they are not the usual ones
        refused: {validate: words of the message, film: …, predict: …}
        why: the reason
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

PACKAGES = Path(__file__).parent / "zoo" / "packages"
STEPS = ("validate", "train", "resume", "inference", "film", "predict")
TRAINED, RESUMED, ROWS = 128, 192, 64
"""Steps of the first run, which makes two updates, and of the resumed one, which makes a third; rows an update."""
BEHAVIOR: dict[str, Any] = {
    "trainer_type": "ppo",
    "time_horizon": 32,
    "summary_freq": 64,
    "hyperparameters": {"buffer_size": ROWS, "batch_size": 32, "num_epoch": 1},
    "network_settings": {"hidden_units": 16, "num_layers": 1},
}


@dataclass(frozen=True)
class Kept:
    """An environment of a package, with what is expected of it."""

    name: str
    environment: Mapping[str, Any]
    """The section `environment`."""
    behavior: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its behaviours that differ from `BEHAVIOR`."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Words of the message, by the step that is refused."""
    why: str = ""
    """The reason of the refusal."""

    def mistakes(self, found: Mapping[str, tuple[str, str]]) -> list[str]:
        """Return in what a visit was unlike the table; found: what was wrong and what was said, by step."""
        unlike = []
        for step, (wrong, said) in found.items():
            words = self.refused.get("validate" if step == "train" else step)  # a run says what --validate says
            if words is None:
                unlike += [f"{step}: {wrong}; it said:\n{said}"] * bool(wrong)
            elif not wrong:
                unlike.append(f"{step}: expected {words!r}, but nothing was wrong")
            elif words not in said:
                unlike.append(f"{step}: expected {words!r}; it said:\n{said}")
        return unlike

    def configuration(self) -> dict[str, Any]:
        """Return the configuration of a run that makes two updates, everything in one process."""
        given = dict(self.behavior)
        network = {**BEHAVIOR["network_settings"], **given.pop("network_settings", {})}
        roles = self.environment.get("behaviors", {}).values()
        names = {role if isinstance(role, str) else role.get("behavior") for role in roles} - {None} or {"Zoo"}
        hosts = {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}
        return {
            "environment": {"num_envs": 2, **self.environment},
            "env_settings": {"seed": 3, "timeout_wait": 120},
            "behaviors": {
                name: {**BEHAVIOR, "max_steps": TRAINED, **given, "network_settings": network} for name in sorted(names)
            },
            "pipeline": {"hosts": hosts},
        }


@dataclass(frozen=True)
class Package:
    """A package of the zoo."""

    name: str
    pins: tuple[Requirement, ...]
    absent: str
    alone: str
    environments: tuple[Kept, ...]

    @property
    def version(self) -> str:
        """The version that was tried last."""
        (version,) = [str(pin.specifier).removeprefix("==") for pin in self.pins if pin.name == self.name]
        return version

    def missing(self) -> str:
        """Return which of its pins is not installed; empty if all are."""
        for pin in self.pins:
            try:
                there = metadata.version(pin.name)
            except metadata.PackageNotFoundError:
                return f"{pin.name} is not installed"
            if not pin.specifier.contains(there):
                return f"{pin.name} {there} is installed, not {pin.specifier}"
        return ""


@cache
def packages() -> tuple[Package, ...]:
    """Return all packages, by their names."""
    return tuple(_package(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in sorted(PACKAGES.glob("*.yaml")))


def _package(plain: Mapping[str, Any]) -> Package:
    pins = tuple(map(Requirement, plain.get("pins", [])))
    shared = plain.get("all", {})
    kept = tuple(_kept({**shared, **one}) for one in plain.get("environments", []))
    return Package(plain["package"], pins, plain.get("absent", ""), plain.get("alone", ""), kept)


def _kept(plain: dict[str, Any]) -> Kept:
    own: dict[str, Any] = {key: plain.pop(key) for key in ("name", "behavior", "refused", "why") if key in plain}
    environment = {"kind": "gymnasium", **{key: value for key, value in plain.items() if value is not None}}
    own.setdefault("name", environment.get("id") or environment.get("factory"))
    return Kept(environment=environment, **own)
