"""What hosts of the kind `ray` ask of their cluster, and which cluster it is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from headrace.config.fields import Float, Int, PlainMap, Settings, Text


class HostResources(Settings):
    """What a host on Ray asks for. Ray starts a host where there is as much left, and reserves it."""

    cpus: Float | None = Field(
        None,
        ge=0,
        le=10_000,
        description="CPUs.",
        json_schema_extra={"default_text": "1; 0 in a Ray of the run's own"},
    )
    gpus: Float = Field(0.0, ge=0, le=1000, description="GPUs; a fraction shares one.")
    memory: Int | None = Field(None, gt=0, le=2**50, description="Bytes of memory; null: not reckoned with.")
    custom: PlainMap = Field(
        default_factory=dict, description="Amounts of resources of your own, by the names that nodes offer them under."
    )
    placement: Literal["spread", "pack"] = Field(
        "spread", description="Over as many nodes as there are, or on as few as will do."
    )

    @field_validator("custom", mode="after")
    @classmethod
    def _amounts(cls, custom: PlainMap) -> PlainMap:
        for name, amount in custom.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                raise ValueError(f"{amount!r} of {name!r} does not fit; expected a number of at least 0")
        return custom


class RaySettings(Settings):
    """The Ray cluster of hosts whose `kind` is `ray`."""

    address: Text | None = Field(
        None,
        min_length=1,
        description="Cluster to join, as `ray start --head` prints it (`host:6379`), or `auto` for the one that this "
        "machine belongs to; null: Ray is started on this machine, listens on 127.0.0.1 alone, and ends with the run.",
    )
    runtime_env: PlainMap = Field(
        default_factory=dict,
        description="Ray's runtime environment (`pip`, `env_vars`, `working_dir`, …) of the hosts on a cluster; the "
        "modules of your own that the YAML names are added to it.",
    )
