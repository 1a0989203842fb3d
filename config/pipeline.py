"""The `pipeline` section: queues, policy lag, custom stages, statistics writers and supervision.

`STATISTICS_WRITERS` is the table of writers that a run may list by name. To add a writer, add an entry there and write
the class that the entry names. TensorBoard's writer is always active. `host_kinds` has the settings for hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Strict, model_validator

from headrace.config.errors import Finding, suggest
from headrace.config.fields import (
    Flag,
    Float,
    Int,
    Names,
    PlainMap,
    Reference,
    Settings,
    Text,
    as_tuple,
    changed,
    hint_at_module,
    is_reference,
    one_of,
    to_number,
)
from headrace.config.host_kinds import HOST_KINDS, HostsSettings, RaySettings
from headrace.config.tables import Table


class QueueSettings(Settings):
    """Settings for one kind of queue."""

    maxlen: Int = Field(
        4, gt=0, le=1000, description="Maximum number of messages in the queue; when it is full, producers wait."
    )


class QueuesSettings(Settings):
    """The queues between stages. Policy queues are not configurable, because they contain only the newest policy."""

    trajectories: QueueSettings = Field(
        default_factory=QueueSettings, description="Queues that carry trajectories to the trainer."
    )
    slab_bytes: Int | None = Field(
        None,
        ge=4096,
        le=2**32,
        description="Size of one shared-memory slab between processes, in bytes; null: computed.",
    )


# Custom stages.

STAGE_GROUP = "headrace.stages"
"""Entry-point group that gives short names to stages in installed packages."""

_OFFERED_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


def _stage_reference(value: object) -> object:
    if not isinstance(value, str) or is_reference(value) or _OFFERED_NAME.fullmatch(value):
        return value
    module, dot, name = value.rpartition(".")
    meant = f"{module}:{name}"
    hint = f"; did you mean '{meant}'?" if dot and is_reference(meant) else hint_at_module(value)
    raise ValueError(
        f"'{value}' is neither of the form module:Class nor a name that an installed package provides (entry-point "
        f"group {STAGE_GROUP}){hint}"
    )


StageReference = Annotated[str, Strict(), BeforeValidator(_stage_reference)]


class StagePlacement(Settings):
    """A custom stage, and its position in the pipeline."""

    use: StageReference = Field(
        description="`module:Class` of the stage (the module may be next to the YAML or in the working directory), "
        f"or the name of a stage that an installed package provides in the entry-point group `{STAGE_GROUP}`."
    )
    after: Literal["agent_processor", "ghost"] = Field(
        "agent_processor", description="The stage whose output it receives. `ghost` exists only with self-play."
    )
    behaviors: Names | None = Field(
        None, min_length=1, description="Names of the behaviours that the stage handles; null: all."
    )
    with_: PlainMap = Field(default_factory=dict, alias="with", description="Keyword arguments for the class.")
    host: Literal["main"] | None = Field(
        None, description="`main`: in the main process; null: in the host of the stage that it follows."
    )
    name: Text = Field(
        "",
        min_length=1,
        description="The stage's name in logs and checkpoints; must be unique.",
        json_schema_extra={"default_text": "the class's name"},
    )

    def _derive(self) -> None:
        if not self._is_set("name"):
            self._fill(name=self.use.rpartition(":")[2])


# Statistics writers.


@dataclass(frozen=True, slots=True)
class WriterKind:
    """One statistics writer. Its class is specified as `module:Class` and is imported when a run uses the writer."""

    meaning: str
    """Description for the YAML reference."""
    made_by: str
    """Class with the methods of `StatisticsWriter`; its constructor's parameters are the keys of `with`."""
    packages: tuple[str, ...] = ()
    """Packages that the writer needs; the extra that is named after the writer installs them."""
    patient: bool = False
    """True to keep calling the writer after disk errors, because the disk may have space again later."""


STATISTICS_WRITERS: Table[WriterKind] = Table(
    csv=WriterKind(
        "a table `statistics.csv` in each behaviour's folder",
        "headrace.pipeline.reporting.csv_writer:CsvWriter",
        patient=True,
    ),
    wandb=WriterKind("Weights & Biases", "headrace.pipeline.reporting.trackers:WandbWriter", ("wandb",)),
    mlflow=WriterKind(
        "MLflow", "headrace.pipeline.reporting.trackers:MlflowWriter", ("mlflow", "sqlalchemy", "alembic")
    ),
)
"""The writers, keyed by their name in `statistics_writers`."""


def _writer(value: object) -> object:
    if isinstance(value, str) and not (value in STATISTICS_WRITERS or is_reference(value)):
        words = ", ".join(map(repr, STATISTICS_WRITERS))
        raise ValueError(
            f"'{value}' is not a statistics writer; expected {words}, or 'module:Class' for your "
            f"own{suggest(value, STATISTICS_WRITERS)}"
        )
    return value


class WriterSettings(Settings):
    """One statistics writer, which receives every summary that TensorBoard receives.

    The short form is just its name.
    """

    use: Annotated[Text, BeforeValidator(_writer)] = Field(
        description=f"{'; '.join(f'`{name}`: {kind.meaning}' for name, kind in STATISTICS_WRITERS.items())}; or your "
        "own `module:Class`; the module may be next to the YAML or in the working directory."
    )
    with_: PlainMap = Field(
        default_factory=dict,
        alias="with",
        description="Keyword arguments for the class; the class also receives `run_folder` and `resume`, if it has "
        "parameters with these names.",
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {"use": value} if isinstance(value, str) else value


# Supervision: for how long a part of the run may be silent before a warning, and before it is terminated.

_WARN = "Seconds of silence before a warning names the silent part and the code that it runs."
_END = "Seconds of silence before the part is terminated"
_MOST_S = 1e6
STARTING_FACTOR = 5
"""Factor applied to the limits for hosts that are starting and for code outside stages, because both spend most of
their time on imports."""
START_S = 300.0
"""Minimum limit in seconds for a starting host whose limit is `env_settings.timeout_wait`, which is meant for games."""
PAUSE_S = 5.0
"""Maximum delay, in seconds, of the check for silence, which is due every second. After a longer delay, no silence
counts, because the checker itself was stopped."""


class _Silence(Settings):
    """How long a process may be silent, in seconds."""

    warn_s: Float
    end_s: Float | None

    def _mistakes(self) -> Iterator[Finding]:
        if self.end_s is not None and self.end_s < self.warn_s and self._is_set("warn_s"):
            message = (
                f"{self.end_s:g} is less than warn_s ({self.warn_s:g}), so the part would be terminated before the "
                "warning"
            )
            yield Finding(("end_s",), message, (("warn_s",),))

    def _derive(self) -> None:
        if self.end_s is not None and self.end_s < self.warn_s:
            self._fill(warn_s=self.end_s)


class ActorSilence(_Silence):
    """Silence limits for actors."""

    warn_s: Float = Field(20.0, gt=0, le=_MOST_S, description=_WARN)
    end_s: Float | None = Field(
        None,
        gt=0,
        le=_MOST_S,
        description=f"{_END} and, within the restart limits, restarted; null: `env_settings.timeout_wait`, and "
        f"{START_S:g} or five times that, whichever is longer, before its first message and while it starts up.",
    )


class LearnerSilence(_Silence):
    """Silence limits for learners."""

    warn_s: Float = Field(60.0, gt=0, le=_MOST_S, description=f"{_WARN} A long update counts as silence.")
    end_s: Float | None = Field(
        600.0, gt=0, le=_MOST_S, description=f"{_END} and, within the restart limits, restarted; null: never."
    )


class MainSilence(_Silence):
    """Silence limits for main."""

    warn_s: Float = Field(
        60.0, gt=0, le=_MOST_S, description=f"{_WARN} With inline hosts, the main process also learns and acts."
    )
    end_s: Float | None = Field(600.0, gt=0, le=_MOST_S, description=f"{_END}, and the run with it; null: never.")


class SupervisionSettings(Settings):
    """Limits on how long a part may be silent.

    A part is not silent while it is paused, or while it waits for the Editor, a Ray node, credits or space in a queue.
    The limits are five times higher before a process's first message, and while it imports libraries or creates its
    environments or a policy. The same applies to work that main does outside stages. Inline hosts are part of main.
    """

    actors: ActorSilence = Field(
        default_factory=ActorSilence,
        description="Hosts of environments, evaluation, replay and central inference.",
    )
    learners: LearnerSilence = Field(default_factory=LearnerSilence, description="Hosts of trainers.")
    main: MainSilence = Field(default_factory=MainSilence, description="The main process.")
    grace_s: Float = Field(
        60.0,
        gt=0,
        le=_MOST_S,
        description="Seconds that a host may go without progress while it shuts down at the end of the run; after "
        "that, the run kills it.",
    )


# The section itself.

MOST_UPDATES_OF_LAG = 1_000_000
"""Maximum lag in updates. A larger value is almost certainly a typing error."""


def _lag(value: object) -> object:
    number = to_number(value) if isinstance(value, str) else value
    if isinstance(number, int | float) and not isinstance(number, bool):
        if 0 <= number <= MOST_UPDATES_OF_LAG and number == int(number):
            return int(number)
    elif value == "auto":
        return value
    raise ValueError(f"{value!r} is not valid; expected 'auto' or a whole number from 0 to {MOST_UPDATES_OF_LAG}")


class PipelineSettings(Settings):
    """The pipeline itself. ML-Agents does not have this section."""

    max_wall_time_s: Float | None = Field(
        None,
        gt=0,
        description="Seconds after which the run ends cleanly, with a checkpoint, as after Ctrl-C; null: no limit. "
        "Time before a resume does not count.",
    )

    deterministic: Flag = Field(
        False,
        description="The same seed gives the same weights, bit for bit. Needs inline hosts and `max_policy_lag` 0.",
    )
    max_policy_lag: Annotated[Literal["auto"] | Annotated[int, Strict(), Field(ge=0)], BeforeValidator(_lag)] = Field(
        "auto",
        description="Number of updates by which actors may run ahead of the trainer: with 0, actors wait for the "
        "trainer; with 1, they collect while it learns. `auto`: 0 if collecting takes more than three times as long "
        "as learning in the first updates, otherwise 1.",
        json_schema_extra={"default_text": "`auto`; 0 if `deterministic`"},
    )
    inference: Annotated[Text, one_of(("actor", "central"))] = Field(
        "actor",
        description="Where policies run: in each `actor`, with its own copy, or in one `central` host for all actors, "
        "in batches, which is faster for large networks.",
    )
    hosts: HostsSettings = Field(default_factory=HostsSettings, description="Hosts of stages.")
    ray: RaySettings = Field(default_factory=RaySettings, description="The Ray cluster, for hosts on Ray.")
    queues: QueuesSettings = Field(default_factory=QueuesSettings, description="Queues between stages.")
    stages: Annotated[tuple[StagePlacement, ...], BeforeValidator(as_tuple)] = Field(
        (), description="Custom stages, in their order on each edge."
    )
    statistics_writers: Annotated[tuple[WriterSettings, ...], BeforeValidator(as_tuple)] = Field(
        (), description="Writers of statistics, in addition to the console and TensorBoard."
    )
    diagnosis_rules: Annotated[tuple[Reference, ...], BeforeValidator(as_tuple)] = Field(
        (), description="Your own rules of the diagnosis, each as `module:Class`; see docs/diagnosis.md."
    )
    monitor_csv: Flag = Field(
        False,
        description="Write a row for each training episode to `results/<run-id>/<behavior>/monitor.csv`, in the "
        "format of Stable-Baselines3's Monitor: return `r`, length `l`, seconds `t`, plus the episode's number.",
    )
    supervision: SupervisionSettings = Field(
        default_factory=SupervisionSettings, description="How long each part of the run may be silent."
    )

    def _mistakes(self) -> list[Finding]:
        return [*self._against_determinism(), *self._about_inference(), *self._names_twice()]

    def _derive(self) -> None:
        if self.deterministic:
            self._fill(max_policy_lag=0, hosts=self.hosts.in_main())

    def _against_determinism(self) -> list[Finding]:
        if not self.deterministic:
            return []
        against, involves = "conflicts with 'deterministic: true'", (("deterministic",),)
        findings = []
        if self._is_set("max_policy_lag") and self.max_policy_lag not in (0, "auto"):
            message = f"{self.max_policy_lag} {against}, which needs 0; leave one of the two out"
            findings.append(Finding(("max_policy_lag",), message, involves))
        for which in ("actors", "learners", "evaluation", "replay"):
            hosts = getattr(self.hosts, which)
            if "kind" in hosts.model_fields_set and hosts.kind and not HOST_KINDS[hosts.kind].in_main:
                message = f"'{hosts.kind}' {against}, which needs 'inline'; leave one of the two out"
                findings.append(Finding(("hosts", which, "kind"), message, involves))
        return findings

    def _about_inference(self) -> list[Finding]:
        findings = []
        if self.inference != "central":
            if changed(self.hosts.inference):
                message = (
                    "configures the host for central inference, which is not enabled; add 'pipeline.inference: "
                    "central', or leave it out"
                )
                findings.append(Finding(("hosts", "inference"), message, (("inference",),)))
        elif self.deterministic:
            message = (
                "'central' conflicts with 'deterministic: true': the actors in one batch draw random numbers together, "
                "and the batches depend on timing; leave one of the two out"
            )
            findings.append(Finding(("inference",), message, (("deterministic",),)))
        return findings

    def _names_twice(self) -> list[Finding]:
        seen: set[str] = set()
        findings = []
        for index, stage in enumerate(self.stages):
            if stage.name in seen:
                message = f"is a second stage called '{stage.name}'; give one of the two a different 'name'"
                findings.append(Finding(("stages", index), message))
            seen.add(stage.name)
        return findings
