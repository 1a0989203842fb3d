"""The `pipeline` section: hosts of stages, queues, policy lag, and stages of the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, Strict, model_validator

from headrace.config.errors import Finding, suggest
from headrace.config.fields import (
    ChoosingSettings,
    Flag,
    Float,
    Int,
    Names,
    PlainMap,
    Settings,
    Text,
    as_tuple,
    changed,
    is_reference,
    one_of,
    report,
    to_number,
)
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.ray_hosts import HostResources, RaySettings
from headrace.config.statistics_writers import STATISTICS_WRITERS
from headrace.config.supervision import SupervisionSettings

STAGE_GROUP = "headrace.stages"
"""Entry-point group under which installed packages offer stages by a short name."""

_OFFERED_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


def _stage_reference(value: object) -> object:
    if not isinstance(value, str) or is_reference(value) or _OFFERED_NAME.fullmatch(value):
        return value
    module, dot, name = value.rpartition(".")
    meant = f"{module}:{name}"
    hint = f"; did you mean '{meant}'?" if dot and is_reference(meant) else ""
    raise ValueError(
        f"'{value}' is neither of the form module:Class nor a name that an installed package offers "
        f"(entry-point group {STAGE_GROUP}){hint}"
    )


StageReference = Annotated[str, Strict(), BeforeValidator(_stage_reference)]


HostKindName = Annotated[Text, one_of(HOST_KINDS)]
_KINDS = "; ".join(f"`{name}`: {kind.meaning}" for name, kind in HOST_KINDS.items()) + "."


class _Hosts(ChoosingSettings):
    """Hosts of one part of the pipeline."""

    kind: HostKindName = Field("process", description=_KINDS)
    resources: HostResources = Field(
        default_factory=HostResources, description="What each of them asks for; `kind: ray` only."
    )

    @model_validator(mode="after")
    def _can_ask(self) -> Self:
        if self._given("resources") and changed(self.resources) and self.kind and not HOST_KINDS[self.kind].on_ray:
            message = f"hosts of kind '{self.kind}' can't ask for resources; drop them, or use kind: ray"
            report([Finding(("resources",), message, (("kind",),))])
        return self


_AUTO_KIND = f"{_KINDS[:-1]}. `auto`: `process` where there are several cores, else `inline`."


class ActorHosts(_Hosts):
    """The hosts that hold environments and agent processors."""

    choosable: ClassVar[Mapping[str, bool]] = {"kind": True, "replicas": True}

    kind: HostKindName = Field("process", description=_AUTO_KIND, json_schema_extra={"default_text": "`auto`"})
    replicas: Int = Field(
        1,
        gt=0,
        le=256,
        description="How many of them. A number: each has `environment.num_envs` instances. `auto`: as many as pay on "
        "this machine, which share `environment.num_envs` instances, so that what is learned does not depend on it.",
        json_schema_extra={"default_text": "`auto`"},
    )


def _auto_or_number(value: object) -> object:
    if value == "auto" or (type(value) is int and 1 <= value <= MOST_AT_ONCE):
        return value
    raise ValueError(f"{value!r} does not fit; expected 'auto' or a whole number from 1 to {MOST_AT_ONCE}")


AutoOrNumber = Annotated[Literal["auto"] | Annotated[int, Strict()], BeforeValidator(_auto_or_number)]
MOST_AT_ONCE = 256
"""The most processes, and threads of each, that are accepted."""


class LearnerHosts(_Hosts):
    """The hosts that hold trainers, one for each behaviour."""

    choosable: ClassVar[Mapping[str, bool]] = {"kind": True}

    kind: HostKindName = Field("process", description=_AUTO_KIND, json_schema_extra={"default_text": "`auto`"})
    replicas: Int = Field(
        1,
        gt=0,
        le=64,
        description="Replicas of each trainer, which learn together: each computes its part of every minibatch, and "
        "the sum of their gradients is that of a single trainer. With several GPUs each has one of its own.",
    )
    processes: AutoOrNumber = Field(
        "auto",
        description="Processes that all learners share, at most, with `kind: process` and one replica: what kills one "
        "ends all learners in it, and each is started again. `auto`: as many as there are cores. On Windows each "
        "learner has a process of its own.",
    )
    threads: AutoOrNumber = Field(
        "auto",
        description="Threads that each trainer computes with. `auto`: the fastest of 1, 2, 4, … by the first updates, "
        "as far as actors and other learners leave cores over; a resume keeps it. 1 if `deterministic`, with `record` "
        "or `replay`, with replicas and on Ray; inline as many as the process is set to.",
    )


class EvaluationHosts(_Hosts):
    """The host in which policies are evaluated, if the YAML has an `evaluation` section."""

    kind: HostKindName = Field("process", description=_KINDS, json_schema_extra={"default_text": "`actors.kind`"})


class ReplayHosts(_Hosts):
    """The hosts of SAC's replay buffers; without `kind` they lie inside the learners."""

    kind: HostKindName | None = Field(
        None, description=_KINDS, json_schema_extra={"default_text": "inside the learner"}
    )  # type: ignore[assignment]
    replicas: Int = Field(1, gt=0, le=256, description="Shards of each buffer, of which each has a host.")


class InferenceHosts(_Hosts):
    """The host that decides for all actors where `inference` is `central`; a GPU that one learns on decides, too."""


class HostsSettings(Settings):
    """Hosts of the pipeline's parts."""

    actors: ActorHosts = Field(default_factory=ActorHosts, description="Environments and agent processors.")
    learners: LearnerHosts = Field(default_factory=LearnerHosts, description="Trainers.")
    evaluation: EvaluationHosts = Field(default_factory=EvaluationHosts, description="Evaluation's environments.")
    replay: ReplayHosts = Field(default_factory=ReplayHosts, description="Replay buffers of `sac`.")
    inference: InferenceHosts = Field(
        default_factory=InferenceHosts, description="Policies, with `inference: central` only."
    )

    @model_validator(mode="after")
    def _evaluate_as_actors_act(self) -> HostsSettings:
        if not self.evaluation._given("kind"):
            kind, resources = self.actors.kind, self.actors.resources
            self._fill(evaluation=EvaluationHosts.model_construct(set(), kind=kind, resources=resources))
        return self


class QueueSettings(Settings):
    """One kind of queue."""

    maxlen: Int = Field(4, gt=0, le=1000, description="Most messages that wait in it; then its producers wait.")


class QueuesSettings(Settings):
    """The queues between stages. Policy queues are not among them: they hold the newest policy only."""

    trajectories: QueueSettings = Field(
        default_factory=QueueSettings, description="Queues of trajectories, up to the trainer."
    )
    slab_bytes: Int | None = Field(
        None,
        ge=4096,
        le=2**32,
        description="Size of one shared-memory slab between processes, in bytes; null: computed.",
    )


class StagePlacement(Settings):
    """One stage of your own, and its place."""

    use: StageReference = Field(
        description="`module:Class` of the stage (modules beside the YAML and in the working directory are found), or "
        f"the name under which an installed package offers one in the entry-point group `{STAGE_GROUP}`."
    )
    after: Literal["agent_processor", "ghost"] = Field(
        "agent_processor", description="The stage whose output it receives. `ghost` exists with self-play only."
    )
    behaviors: Names | None = Field(None, min_length=1, description="Behaviour names that it handles; null: all.")
    with_: PlainMap = Field(default_factory=dict, alias="with", description="Keyword arguments for the class.")
    host: Literal["main"] | None = Field(
        None, description="`main`: in the main process; null: in the host of the stage that it follows."
    )
    name: Text = Field(
        "",
        min_length=1,
        description="Its name in logs and checkpoints; unique.",
        json_schema_extra={"default_text": "the class's name"},
    )

    @model_validator(mode="after")
    def _name_it(self) -> StagePlacement:
        if not self._given("name"):
            self._fill(name=self.use.rpartition(":")[2])
        return self


def _writer(value: object) -> object:
    if isinstance(value, str) and not (value in STATISTICS_WRITERS or is_reference(value)):
        words = ", ".join(map(repr, STATISTICS_WRITERS))
        raise ValueError(
            f"'{value}' is no statistics writer; expected {words} or, for one of your own, 'module:Class'"
            f"{suggest(value, STATISTICS_WRITERS)}"
        )
    return value


class WriterSettings(Settings):
    """One statistics writer, which receives every summary that TensorBoard receives; its name alone will do."""

    use: Annotated[Text, BeforeValidator(_writer)] = Field(
        description=f"{'; '.join(f'`{name}`: {kind.meaning}' for name, kind in STATISTICS_WRITERS.items())}; or "
        "`module:Class` of your own; modules beside the YAML and in the working directory are found."
    )
    with_: PlainMap = Field(
        default_factory=dict,
        alias="with",
        description="Keyword arguments for the class; it also receives `run_folder` and `resume`, if it has these.",
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: object) -> object:
        return {"use": given} if isinstance(given, str) else given


MOST_UPDATES_OF_LAG = 1_000_000
"""The largest lag that is accepted; more is a slip of the pen."""


def _lag(value: object) -> object:
    number = to_number(value) if isinstance(value, str) else value
    if isinstance(number, int | float) and not isinstance(number, bool):
        if 0 <= number <= MOST_UPDATES_OF_LAG and number == int(number):
            return int(number)
    elif value == "auto":
        return value
    raise ValueError(f"{value!r} does not fit; expected 'auto' or a whole number from 0 to {MOST_UPDATES_OF_LAG}")


class PipelineSettings(Settings):
    """The pipeline itself. ML-Agents has no such section."""

    max_wall_time_s: Float | None = Field(
        None,
        gt=0,
        description="Seconds after which the run ends in order, with a checkpoint, as by Ctrl-C; null: no limit. Those "
        "before a resume do not count.",
    )

    deterministic: Flag = Field(
        False,
        description="The same seed gives the same weights, bit for bit: inline hosts and `max_policy_lag` 0.",
    )
    max_policy_lag: Annotated[Literal["auto"] | Annotated[int, Strict()], BeforeValidator(_lag)] = Field(
        "auto",
        description="Updates that actors may run ahead of the trainer: 0 waits, 1 collects while learning. `auto`: 0 "
        "where collecting takes more than half as long again as learning in the first updates, else 1.",
        json_schema_extra={"default_text": "`auto`; 0 if `deterministic`"},
    )
    inference: Annotated[Text, one_of(("actor", "central"))] = Field(
        "actor",
        description="Where policies decide: each `actor` by its own copy, or one `central` host for all actors, in "
        "batches, which pays for large networks.",
    )
    hosts: HostsSettings = Field(default_factory=HostsSettings, description="Hosts of stages.")
    ray: RaySettings = Field(default_factory=RaySettings, description="The cluster of hosts on Ray.")
    queues: QueuesSettings = Field(default_factory=QueuesSettings, description="Queues between stages.")
    stages: Annotated[tuple[StagePlacement, ...], BeforeValidator(as_tuple)] = Field(
        (), description="Stages of your own, in their order on the edge where they stand."
    )
    statistics_writers: Annotated[tuple[WriterSettings, ...], BeforeValidator(as_tuple)] = Field(
        (), description="Receivers of statistics beside the console and TensorBoard."
    )
    supervision: SupervisionSettings = Field(
        default_factory=SupervisionSettings, description="How long a part of the run may be silent."
    )

    @model_validator(mode="after")
    def _relate(self) -> PipelineSettings:
        report([*self._against_determinism(), *self._about_inference(), *self._names_twice()])
        if self.deterministic:
            self._fill(max_policy_lag=0, hosts=_in_main(self.hosts))
        return self

    def _against_determinism(self) -> list[Finding]:
        if not self.deterministic:
            return []
        against, involves = "contradicts 'deterministic: true'", (("deterministic",),)
        findings = []
        if self.hosts.actors.replicas != 1:
            message = f"{self.hosts.actors.replicas} {against}, which needs 1; raise environment.num_envs instead"
            findings.append(Finding(("hosts", "actors", "replicas"), message, involves))
        if self._given("max_policy_lag") and self.max_policy_lag not in (0, "auto"):
            message = f"{self.max_policy_lag} {against}, which needs 0; drop one of the two"
            findings.append(Finding(("max_policy_lag",), message, involves))
        for which in ("actors", "learners", "evaluation", "replay"):
            hosts = getattr(self.hosts, which)
            if "kind" in hosts.model_fields_set and hosts.kind and not HOST_KINDS[hosts.kind].in_main:
                message = f"'{hosts.kind}' {against}, which needs 'inline'; drop one of the two"
                findings.append(Finding(("hosts", which, "kind"), message, involves))
        return findings

    def _about_inference(self) -> list[Finding]:
        findings = []
        if self.inference != "central":
            if changed(self.hosts.inference):
                message = "is the host of central inference; add pipeline.inference: central, or leave it out"
                findings.append(Finding(("hosts", "inference"), message, (("inference",),)))
        elif self.deterministic:
            message = (
                "'central' contradicts 'deterministic: true': who asks together draws random numbers together, and "
                "that is a matter of time; drop one of the two"
            )
            findings.append(Finding(("inference",), message, (("deterministic",),)))
        return findings

    def _names_twice(self) -> list[Finding]:
        seen: set[str] = set()
        findings = []
        for index, stage in enumerate(self.stages):
            if stage.name in seen:
                message = f"is another stage called '{stage.name}'; give one of them a 'name' of its own"
                findings.append(Finding(("stages", index), message))
            seen.add(stage.name)
        return findings


def _in_main(hosts: HostsSettings) -> HostsSettings:
    def moved(settings: ActorHosts | LearnerHosts | EvaluationHosts) -> dict[str, str]:
        return {} if HOST_KINDS[settings.kind].in_main else {"kind": "inline"}

    return HostsSettings(
        actors=hosts.actors.model_copy(update=moved(hosts.actors)),
        evaluation=hosts.evaluation.model_copy(update=moved(hosts.evaluation)),
        replay=hosts.replay,
        inference=hosts.inference,
        learners=hosts.learners.model_copy(update=moved(hosts.learners)),
    )
