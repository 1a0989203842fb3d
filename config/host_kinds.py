"""A run's hosts: the table of host kinds, and the `pipeline.hosts` and `pipeline.ray` sections.

To add a kind, add an entry to `HOST_KINDS` and write the class that the entry names, which starts hosts and creates
their queues (`headrace.pipeline.hosts.protocol.HostFactory`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, Strict, field_validator

from headrace.config.errors import Finding
from headrace.config.fields import ChoosingSettings, Device, Float, Int, PlainMap, Settings, Text, changed, one_of
from headrace.config.tables import Table


@dataclass(frozen=True, slots=True)
class HostKind:
    """One kind of host."""

    meaning: str
    """Description for the YAML reference."""
    implementation: str
    """`module:Class` of a `HostFactory`, which is loaded when the first host of this kind is started."""
    in_main: bool = False
    """True if hosts of this kind run in main's event loop. They can then use any queue end that main can open, and a
    run with only hosts of this kind can be deterministic. Hosts of other kinds share queues only with hosts of the
    same kind; all other items pass through main."""
    on_ray: bool = False
    """True if hosts of this kind run on the Ray cluster that `pipeline.ray` describes, and can request resources there.
    """
    extra: str = ""
    """Name of the additional package that this kind needs; the `headrace` extra that installs it has the same name."""


HOST_KINDS: Table[HostKind] = Table(
    process=HostKind("separate processes", "headrace.pipeline.hosts.process:ProcessHosts"),
    inline=HostKind("in the main process", "headrace.pipeline.hosts.inline:InlineHosts", in_main=True),
    ray=HostKind(
        "Ray actors, on this machine or a cluster",
        "headrace.pipeline.hosts.ray.hosts:RayHosts",
        on_ray=True,
        extra="ray",
    ),
)
"""The host kinds, keyed by the value of `kind`."""


def joined_directly(sources: str, sink: str) -> bool:
    """Return True if hosts of kind `sources` can put items directly into a queue in a host of kind `sink`."""
    return sources == sink or HOST_KINDS[sink].in_main


_WITHOUT_RESOURCES = "hosts of kind '{}' can't request resources; leave the resources out, or use kind: ray"
NODE = "node:"
"""Prefix of the resource that Ray defines for each cluster node, followed by the node's address. Each node has 1 unit
of its resource."""


class HostResources(Settings):
    """Resources that a host on Ray requests. Ray starts the host on a node that has them free, and reserves them."""

    cpus: Float | None = Field(
        None,
        ge=0,
        le=10_000,
        description="CPUs.",
        json_schema_extra={"default_text": "1; 0 if the run starts Ray itself"},
    )
    gpus: Float = Field(0.0, ge=0, le=1000, description="Number of GPUs; with a fraction, hosts share a GPU.")
    memory: Int | None = Field(None, gt=0, le=2**50, description="Bytes of memory; null: no request.")
    custom: PlainMap = Field(
        default_factory=dict,
        description="Amounts of custom resources, keyed by the names under which nodes offer them; "
        "`node:10.0.0.7: 0.01` requests the node with this address.",
    )
    placement: Literal["spread", "pack"] = Field(
        "spread", description="Whether hosts are spread over all nodes, or packed onto as few nodes as possible."
    )

    @field_validator("custom", mode="after")
    @classmethod
    def _amounts(cls, custom: PlainMap) -> PlainMap:
        for name, amount in custom.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                raise ValueError(f"{name!r} is {amount!r}; expected a non-negative number")
        return custom


class RaySettings(Settings):
    """The Ray cluster for hosts whose `kind` is `ray`."""

    address: Text | None = Field(
        None,
        min_length=1,
        description="Cluster to join, as `ray start --head` prints it (`host:6379`), or `auto` for the cluster of this "
        "machine; null: the run starts Ray on this machine, listening only on 127.0.0.1, and stops it at the end.",
    )
    runtime_env: PlainMap = Field(
        default_factory=dict,
        description="Ray's runtime environment (`pip`, `env_vars`, `working_dir`, …) of the hosts on a cluster; your "
        "own modules that the YAML names are added to it.",
    )


HostKindName = Annotated[Text, one_of(HOST_KINDS)]
_KINDS = "; ".join(f"`{name}`: {kind.meaning}" for name, kind in HOST_KINDS.items()) + "."


class _Hosts(ChoosingSettings):
    """The hosts of one part of the pipeline."""

    kind: HostKindName = Field("process", description=_KINDS)
    resources: HostResources = Field(
        default_factory=HostResources, description="Resources that each host requests; `kind: ray` only."
    )

    def _mistakes(self) -> Iterator[Finding]:
        if self._is_set("resources") and changed(self.resources) and self.kind and not HOST_KINDS[self.kind].on_ray:
            yield Finding(("resources",), _WITHOUT_RESOURCES.format(self.kind), (("kind",),))


_AUTO_KIND = f"{_KINDS[:-1]}. `auto`: `process` if there are several cores, otherwise `inline`."


class ActorHosts(_Hosts):
    """The hosts that run environments and agent processors."""

    choosable: ClassVar[Mapping[str, bool]] = {"kind": True, "replicas": True}

    kind: HostKindName = Field("process", description=_AUTO_KIND, json_schema_extra={"default_text": "`auto`"})
    replicas: Int = Field(
        1,
        gt=0,
        le=256,
        description="Number of actors. With a number, each actor has `environment.num_envs` instances. `auto`: as "
        "many as make the run faster on this machine; they share `environment.num_envs` instances, so learning does "
        "not depend on the number.",
        json_schema_extra={"default_text": "`auto`"},
    )


def _auto_or_number(value: object) -> object:
    if value == "auto" or (type(value) is int and 1 <= value <= MOST_AT_ONCE):
        return value
    raise ValueError(f"{value!r} is not valid; expected 'auto' or a whole number from 1 to {MOST_AT_ONCE}")


AutoOrNumber = Annotated[Literal["auto"] | Annotated[int, Strict(), Field(ge=1)], BeforeValidator(_auto_or_number)]
MOST_AT_ONCE = 256
"""Maximum number of processes, and maximum number of threads per process."""


class LearnerHosts(_Hosts):
    """The hosts that run trainers, one for each behaviour."""

    choosable: ClassVar[Mapping[str, bool]] = {"kind": True}

    kind: HostKindName = Field("process", description=_AUTO_KIND, json_schema_extra={"default_text": "`auto`"})
    replicas: Int = Field(
        1,
        gt=0,
        le=64,
        description="Replicas of each trainer, which learn together: each computes its part of every minibatch, and "
        "the sum of their gradients is that of a single trainer. If there are several GPUs, each replica has its own.",
    )
    processes: AutoOrNumber = Field(
        "auto",
        description="Maximum number of processes for all learners, with `kind: process` and one replica. If a process "
        "dies, all its learners die and are restarted. `auto`: the number of cores. On Windows, each learner has its "
        "own process.",
    )
    threads: AutoOrNumber = Field(
        "auto",
        description="Threads of each trainer. `auto`: the fastest of 1, 2, 4, … in the first updates, limited to the "
        "cores that actors and other learners leave free (`sac` with hand-written gradients always tries a second "
        "thread, because actors mostly wait for the trainer); a resumed run keeps the number. `auto` means 1 if "
        "`deterministic`, with `record` or `replay`, with replicas and on Ray; inline hosts use the process's "
        "setting.",
    )


class EvaluationHosts(_Hosts):
    """The host that evaluates policies, if the YAML has an `evaluation` section."""

    kind: HostKindName = Field("process", description=_KINDS, json_schema_extra={"default_text": "`actors.kind`"})


class ReplayHosts(_Hosts):
    """The hosts of SAC's replay buffers. If `kind` is not set, each learner holds its own buffer."""

    kind: HostKindName | None = Field(
        None, description=_KINDS, json_schema_extra={"default_text": "inside the learner"}
    )  # type: ignore[assignment]
    replicas: Int = Field(1, gt=0, le=256, description="Shards of each buffer; each shard has its own host.")


class InferenceHosts(_Hosts):
    """The host that chooses actions for all actors if `inference` is `central`, on the same GPU as learning."""


class HostsSettings(Settings):
    """The hosts of the pipeline's parts."""

    actors: ActorHosts = Field(default_factory=ActorHosts, description="Environments and agent processors.")
    learners: LearnerHosts = Field(default_factory=LearnerHosts, description="Trainers.")
    evaluation: EvaluationHosts = Field(default_factory=EvaluationHosts, description="Evaluation's environments.")
    replay: ReplayHosts = Field(default_factory=ReplayHosts, description="Replay buffers of `sac`.")
    inference: InferenceHosts = Field(
        default_factory=InferenceHosts, description="Policies; only with `inference: central`."
    )

    def _derive(self) -> None:
        if not self.evaluation._is_set("kind"):
            kind, resources = self.actors.kind, self.actors.resources
            self._fill(evaluation=EvaluationHosts.model_construct(set(), kind=kind, resources=resources))

    def in_main(self) -> HostsSettings:
        """Return a copy in which actors, learners and evaluation run in main, as `deterministic` requires."""
        moved = {
            part: hosts.model_copy(update={"kind": "inline"})
            for part in ("actors", "learners", "evaluation")
            if not HOST_KINDS[(hosts := getattr(self, part)).kind].in_main
        }
        return self.model_copy(update=moved)


class PlacementSettings(Settings):
    """Where a league learner and its actors run.

    These settings override those in `pipeline.hosts` and `torch_settings`.
    """

    device: Device | None = Field(
        None,
        description="Torch device of the learner's trainer, such as `cpu` or `cuda:1`; null: `torch_settings.device`.",
    )
    actors: HostResources | None = Field(
        None,
        description="Resources that each of the learner's actors requests; `kind: ray` only. null: "
        "`pipeline.hosts.actors.resources`.",
    )
    learners: HostResources | None = Field(
        None,
        description="Resources that the host of the learner's trainer requests, and each replica; `kind: ray` only. "
        "null: `pipeline.hosts.learners.resources`.",
    )

    def not_on_ray(self, hosts: HostsSettings) -> Iterator[Finding]:
        """Report resources that are set for hosts whose kind can't request resources."""
        for part in ("actors", "learners"):
            kind = getattr(hosts, part).kind
            if getattr(self, part) is not None and not HOST_KINDS[kind].on_ray:
                yield Finding((part,), _WITHOUT_RESOURCES.format(kind), (("pipeline", "hosts", part, "kind"),))
