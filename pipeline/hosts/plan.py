"""The plan of a host: plain data, so that it can be sent to another process as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.config.tables import import_plugins, plugin_modules


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host of a run."""

    role: str
    """One of `pipeline/common/run_parts.py`."""
    name: str
    """Unique among the run's hosts: `actor-0`, `learner-Ball`, …"""
    config: Mapping[str, Any]
    config_path: str | None
    run_folder: str
    seed: int
    """The run's seed; the host derives its own from it."""
    replica: int = 0
    source: int = 0
    """Of an actor: its incarnation."""
    behavior: str = ""
    """Of a learner, its followers and shards: the behaviour name."""
    spec: Mapping[str, Any] | None = None
    """Of a learner, its followers and shards: the behaviour spec."""
    rendezvous: tuple[str, int] = ("", 0)
    """Of a follower: address and port at which it finds the learner; its rank is `replica`."""
    resume: bool = False
    """Take up this host's parts of the run's newest checkpoint."""
    resumed_at: int = -1
    lost_version: int = -1
    """Of a learner in the place of a lost one: the highest version of a policy that the lost one may have sent."""
    replay_edge: str = ""
    """Of a replay host: where its streams were recorded."""
    run_id: str = ""
    best: Mapping[str, float] = field(default_factory=dict)
    """Of the evaluation host: the best mean return of each behaviour name so far."""
    host_class: str = ""
    """`module:Class` of a `Host` in the place of the role's own; what every kind of host must do is tested by one."""

    plugins: Sequence[str] = field(default_factory=plugin_modules)
    """Modules that have added kinds to tables, which the configuration may name."""

    def to_plain(self) -> dict[str, Any]:
        """For msgpack."""
        return asdict(self)

    def load_config(self) -> RunConfig:
        """The run's configuration."""
        import_plugins(self.plugins)
        return RunConfig.from_plain(self.config, Path(self.config_path) if self.config_path else None)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_folder)
