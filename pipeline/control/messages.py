"""The messages of the control channel, from hosts to main and back: small frozen dataclasses of plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.queues.messages import Assignment, Matches
from headrace.stages.environments.parameters import EnvironmentParameters
from headrace.stages.trainer.report import TrainerReport

# Up: from a host to main. --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BehaviorSeen:
    """An actor has met a behaviour id for the first time."""

    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LearnerReady:
    """A learner has built its trainer."""

    behavior: str
    rows_per_update: int
    held_rows: int
    """Rows in its buffer that were restored from a checkpoint."""
    any_age: bool = False
    """True if its trainer learns from steps of any age."""
    corrects_age: bool = False
    """True if its trainer corrects for steps of somewhat older policies."""
    step: int = 0
    """Step from which training continues."""
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    """Hyperparameters that were changed during the run."""


@dataclass(frozen=True, slots=True)
class FollowerReady:
    """A follower is about to join the replicas of the learner that receives this."""


@dataclass(frozen=True, slots=True)
class FollowerLost:
    """A learner can't continue without a lost follower, and waits to be ended as if it were lost too."""

    how: str
    """Which follower was lost and how, e.g. `learner-Walker-replica-1 was killed by signal 9`."""


@dataclass(frozen=True, slots=True)
class CreditRequest:
    """An actor's request for credits, including how many it has used so far."""

    source: int
    number: int
    """Sequence number of the actor's request, repeated in the grant that answers it."""
    used: Mapping[str, int]
    """By behaviour name: learning steps emitted and held so far, cumulative."""
    wants: tuple[str, ...]
    """All behaviours for which it needs credits; if any of them has none, the actor can't step."""
    gives_back: tuple[str, ...] = ()
    """Behaviours whose unused credits it gives back; a waiting actor gives back all."""
    acting: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By behaviour name, (steps, version): all steps after the first `steps` come from `version` or newer."""


@dataclass(frozen=True, slots=True)
class CreditsReturned:
    """A stage discarded trajectories instead of passing them to a trainer; totals are cumulative."""

    by: str
    behavior: str
    source: int
    total: int


@dataclass(frozen=True, slots=True)
class PartSaved:
    """A host has written one stage's part of a checkpoint, durably."""

    number: int
    name: str
    file: str
    size: int
    crc32: int


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A host could not write one stage's part: the checkpoint is abandoned, the run continues."""

    number: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scored:
    """An actor's score for the episodes played since its last report."""

    played: Mapping[str, Any]
    """`headrace.stages.evaluation.scores.Played` by behaviour id."""
    complete: bool
    """True if all episodes of its share have ended."""


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """A source has stopped producing: its recording or environments have ended normally, or it was stopped."""


@dataclass(frozen=True, slots=True)
class PolicyKept:
    """The inference host has received a policy, which actors may now request."""

    behavior_id: str
    version: int
    step: int
    snapshot: int


@dataclass(frozen=True, slots=True)
class Exported:
    """A learner has exported a policy."""

    behavior: str
    step: int
    file: str
    reward: float | None
    onnx: str | None = None
    """Path of the same policy as an `.onnx` file; None if it could not be written."""


@dataclass(frozen=True, slots=True)
class ExportFailed:
    """A learner could not write its newest policy, or the policy's `.onnx` file."""

    behavior: str
    reason: str


@dataclass(frozen=True, slots=True)
class StatisticsReport:
    """A host's statistics since its last report, with its queue counters."""

    statistics: Mapping[str, Any]
    queues: tuple[Mapping[str, Any], ...] = ()
    silent_s: float = 0.0
    """Seconds since a stage of the host last made progress, although its event loop runs."""
    timings: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """(seconds, count) since the last report, by kind of work."""
    span_s: float = 0.0
    """Seconds since the last report, by the host's clock."""
    cpu_s: float = 0.0
    """Total CPU time of the host's process."""
    memory: int = 0
    """Resident bytes of the host's process; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """A host begins or ends its preparation (`headrace.stages.activity.preparing`)."""

    begins: bool


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """A trainer has completed an epoch, the next `evaluation.every` steps."""

    behavior: str
    step: int
    """Last trainer step of the epoch."""
    values: Mapping[str, float]
    """Statistics of the whole epoch."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of playing a policy deterministically in separate environments; see `EvaluationResult`."""

    behavior: str
    """The behaviour name."""
    step: int
    mean: float
    deviation: float
    lowest: float
    highest: float
    length: float
    episodes: int
    best: bool
    shortest: int = 0
    longest: int = 0


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record of a host, for the user."""

    level: int
    logger: str
    text: str


@dataclass(frozen=True, slots=True)
class HostFailed:
    """A host ends because of an error."""

    message: str
    traceback: str
    stage: str = ""
    key: tuple[str | int, ...] = ()
    """The YAML key that caused it; empty if none did."""
    of_user: bool = False
    """True if the user's code raised it, so that the traceback says more than the message."""


@dataclass(frozen=True, slots=True)
class HostFinished:
    """A host has done all its work and ends."""


@dataclass(frozen=True, slots=True)
class ShowAnnounced:
    """The state of an exhibition and the controls that it offers; see `headrace.pipeline.parts.exhibition.host`."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PictureTaken:
    """A frame of an exhibition, with its time."""

    values: Mapping[str, Any]
    image: bytes = b""
    """JPEG image; empty if `values` contains shapes to draw instead."""


# Down: from main to a host. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenEdge:
    """A queue is ready for this host to open its end."""

    name: str
    """Queue name, such as `trajectories/Ball` or `policies/Ball?team=0`."""
    address: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DecideFor:
    """To the inference host: actors have agents with this behaviour id, and its policies will follow."""

    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grant:
    """The ledger's answer: new caps, and the lowest policy version that may use them.

    An actor ignores the cap of a behaviour that it has given back in a later request.
    """

    source: int
    number: int
    caps: Mapping[str, int]
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LearnerReplaced:
    """A behaviour's learner was lost, and another takes its place.

    Emitted steps may be lost with it: continue as a new source, whose credits are counted from 0.
    """

    behavior: str
    source: int


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Write your part of checkpoint `number`; a source first puts its barrier into the stream."""

    number: int


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Write your part of checkpoint `number` immediately, without waiting for a barrier that may never come."""

    number: int


@dataclass(frozen=True, slots=True)
class FolderMoved:
    """Write to this folder from now on, as the run's folder was removed or taken by another run."""

    run_folder: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop producing; the pipeline then drains."""


@dataclass(frozen=True, slots=True)
class Hold:
    """To sources: pause or resume producing, but keep following all other commands."""

    held: bool


@dataclass(frozen=True, slots=True)
class SetHyperparameter:
    """To a learner: use another hyperparameter value, starting with the next update."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """To a learner: restart from given or initial weights, with a fresh optimiser and fresh schedules."""

    number: int
    """Number of the restart, counted from 1; a restart that the learner has already done has no effect."""
    weights: bytes | None = None
    """Starting weights, as float32 in the policy's parameter order; None for the initial weights."""


@dataclass(frozen=True, slots=True)
class LearnNoMore:
    """To a learner: finish as if `max_steps` had been reached."""

    why: str
    """The reason, in words."""


@dataclass(frozen=True, slots=True)
class DirectShow:
    """New settings for an exhibition; always complete, including unchanged ones."""

    parts: Mapping[str, Any]
    """By behaviour id: the player's name, and whether a person takes over one of the agents."""
    paused: bool = False
    speed: float = 1.0
    recorded: str = ""
    """Behaviour id of the person being recorded; empty if none."""


@dataclass(frozen=True, slots=True)
class KeysHeld:
    """All keys held down by the person who plays a behaviour id."""

    behavior_id: str
    number: int
    """Sequence number, which increases with each message from a person."""
    keys: tuple[str, ...]


# fmt: off
ControlMessage = (
    BehaviorSeen | LearnerReady | FollowerReady | FollowerLost | CreditsReturned | CreditRequest | TrainerReport
    | PartSaved | PartFailed | Scored | SourceEnded | PolicyKept | Exported | ExportFailed | Preparing
    | StatisticsReport | EpochEnded | Evaluated | LogLine | HostFailed | HostFinished | OpenEdge | DecideFor
    | Assignment | Matches | EnvironmentParameters | Grant | LearnerReplaced | BeginCheckpoint | SaveNow | FolderMoved
    | Stop | Hold | SetHyperparameter | LearnNoMore | BeginAnew | ShowAnnounced | PictureTaken | DirectShow | KeysHeld
)
