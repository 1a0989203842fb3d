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
    """Which follower was lost, and how: `learner-Walker-replica-1 was killed by signal 9`."""


@dataclass(frozen=True, slots=True)
class CreditRequest:
    """An actor's request for credits, with its account of those that it has used."""

    source: int
    number: int
    """Number of the actor's request, repeated in the grant that answers it."""
    used: Mapping[str, int]
    """By behaviour name: learning steps emitted and held so far, cumulative."""
    wants: tuple[str, ...]
    """All behaviours for which it needs credits: without those of any one, it can't step."""
    gives_back: tuple[str, ...] = ()
    """Behaviours whose unused credits it gives back: all, while it waits."""
    acting: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By behaviour name, (steps, version): that version or newer ones make all its later steps."""


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
    """An actor's score of the episodes that it has played since its last report."""

    played: Mapping[str, Any]
    """`headrace.stages.evaluation.scores.Played` by behaviour id."""
    complete: bool
    """True if its share of the counted episodes has ended."""


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
    """Statistics of a host since its last report, and the counts of its queues."""

    statistics: Mapping[str, Any]
    queues: tuple[Mapping[str, Any], ...] = ()
    silent_s: float = 0.0
    """Seconds since a stage of the host last made progress, although its event loop runs."""
    timings: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """By kind of work, seconds and count since the last report."""
    span_s: float = 0.0
    """Seconds since the last report, by the clock of the host."""
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
    """A trainer has learned from another `evaluation.every` steps."""

    behavior: str
    step: int
    """The epoch's last policy version."""
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
    """JPEG; empty where `values` has shapes."""


# Down: from main to a host. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenEdge:
    """A queue is ready for this host to open its end."""

    name: str
    """Such as `trajectories/Ball` or `policies/Ball?team=0`."""
    address: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DecideFor:
    """Actors have agents of a behaviour id, whose policies will follow; to the inference host."""

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
    """Write into this folder from now on: the run's folder was removed or another run has taken it."""

    run_folder: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop producing; the pipeline then drains."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Pause or resume producing, while following all other commands; to sources."""

    held: bool


@dataclass(frozen=True, slots=True)
class SetHyperparameter:
    """Use another value of a hyperparameter from the next update on; to a learner."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Restart learning from given or initial weights, with a fresh optimiser and fresh schedules; to a learner."""

    number: int
    """Counts the learner's restarts from 1; a restart that the learner knows already has no effect."""
    weights: bytes | None = None
    """Weights to begin with, as float32 in the policy's own order; None: the initial weights."""


@dataclass(frozen=True, slots=True)
class LearnNoMore:
    """Finish as if `max_steps` were reached; to a learner."""

    why: str
    """The reason, in words."""


@dataclass(frozen=True, slots=True)
class DirectShow:
    """The complete settings of an exhibition from now on, including unchanged ones."""

    parts: Mapping[str, Any]
    """By behaviour id: the player's name, and whether a person takes over one of its agents."""
    paused: bool = False
    speed: float = 1.0
    recorded: str = ""
    """The behaviour id whose person is being recorded; empty: none."""


@dataclass(frozen=True, slots=True)
class KeysHeld:
    """All keys that the person who plays for a behaviour id holds down."""

    behavior_id: str
    number: int
    """Sequence number, rising with each message of a person."""
    keys: tuple[str, ...]


# fmt: off
ControlMessage = (
    BehaviorSeen | LearnerReady | FollowerReady | FollowerLost | CreditsReturned | CreditRequest | TrainerReport
    | PartSaved | PartFailed | Scored | SourceEnded | PolicyKept | Exported | ExportFailed | Preparing
    | StatisticsReport | EpochEnded | Evaluated | LogLine | HostFailed | HostFinished | OpenEdge | DecideFor
    | Assignment | Matches | EnvironmentParameters | Grant | LearnerReplaced | BeginCheckpoint | SaveNow | FolderMoved
    | Stop | Hold | SetHyperparameter | LearnNoMore | BeginAnew | ShowAnnounced | PictureTaken | DirectShow | KeysHeld
)
