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
    """Rows in its buffer, restored from a checkpoint."""
    any_age: bool = False
    """True if its trainer learns from steps of any age."""
    corrects_age: bool = False
    """True if its trainer learns as well from steps of somewhat older policies."""
    step: int = 0
    """From which it goes on."""
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    """Those that were changed while the run went on."""


@dataclass(frozen=True, slots=True)
class FollowerReady:
    """A learner's follower is about to join its replicas; told to the learner."""


@dataclass(frozen=True, slots=True)
class FollowerLost:
    """A learner can't go on without a follower that is lost; it waits for its own end, as if it were lost itself."""

    how: str
    """Which follower, and how: `learner-Walker-replica-1 was killed by signal 9`."""


@dataclass(frozen=True, slots=True)
class CreditRequest:
    """An actor's request for credits, with its account of those it has used."""

    source: int
    number: int
    """Number of the actor's request, repeated in the grant that answers it."""
    used: Mapping[str, int]
    """By behaviour name: learning steps emitted and held so far, cumulative."""
    wants: tuple[str, ...]
    """Behaviours that it needs credits for, all of them: it can't step without any one of them."""
    gives_back: tuple[str, ...] = ()
    """Behaviours whose unused credits it gives back: all of them when it is waiting."""
    acting: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By behaviour name: (steps, version): its steps after so many are made by that version or newer ones."""


@dataclass(frozen=True, slots=True)
class CreditsReturned:
    """A stage ended trajectories without learning from them; totals are cumulative."""

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
    """A host could not write one stage's part: the checkpoint is given up, the run goes on."""

    number: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scored:
    """An actor's score of what it has played since the last one."""

    played: Mapping[str, Any]
    """`headrace.stages.evaluation.scores.Played` by behaviour id."""
    complete: bool
    """True if its share of the episodes that count has ended."""


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """A source produces no more: its recording or its environments have ended in order, or it was told to stop."""


@dataclass(frozen=True, slots=True)
class PolicyKept:
    """The inference host has a policy: actors may name it."""

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
    """The same policy as an `.onnx` file; None if that could not be written."""


@dataclass(frozen=True, slots=True)
class ExportFailed:
    """A learner could not write its newest policy, or the `.onnx` file of it."""

    behavior: str
    reason: str


@dataclass(frozen=True, slots=True)
class StatisticsReport:
    """Statistics drained from a host's collector, and the counts of its queues."""

    statistics: Mapping[str, Any]
    queues: tuple[Mapping[str, Any], ...] = ()
    silent_s: float = 0.0
    """For how long a stage of the host has been at something of which nothing comes, although its event loop runs."""
    timings: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """By kind of work, seconds and count since the last report."""
    span_s: float = 0.0
    """Seconds since the last report, by the clock of the host."""
    cpu_s: float = 0.0
    """CPU time of the host's process, in all."""
    memory: int = 0
    """Resident bytes of the host's process; 0 where the system does not tell."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """A host begins to prepare itself, or has done it (`headrace.stages.activity.preparing`)."""

    begins: bool


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """A trainer has gone through another `evaluation.every` steps."""

    behavior: str
    step: int
    """The epoch's last."""
    values: Mapping[str, float]
    """Statistics of the whole epoch."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A policy was played deterministically on environments of its own; see `EvaluationResult`."""

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
    """A host ends because something in it failed."""

    message: str
    traceback: str
    stage: str = ""
    key: tuple[str | int, ...] = ()
    """The key of the YAML that caused it; empty if none did."""
    of_user: bool = False
    """True if it was raised in the user's code, so that the traceback says more than the message."""


@dataclass(frozen=True, slots=True)
class HostFinished:
    """A host has done all its work and ends."""


@dataclass(frozen=True, slots=True)
class ShowAnnounced:
    """What an exhibition shows and may do, as it is now; see `headrace.pipeline.parts.exhibition.host`."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PictureTaken:
    """A picture of an exhibition, at its time."""

    values: Mapping[str, Any]
    image: bytes = b""
    """JPEG; empty where `values` has shapes."""


# Down: from main to a host. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenEdge:
    """A queue's end is ready for this host to open."""

    name: str
    """Such as `trajectories/Ball` or `policies/Ball?team=0`."""
    address: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DecideFor:
    """Actors have agents of a behaviour id, whose policies come; to the inference host."""

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
    """A behaviour's learner was lost, and another one takes its place.

    What was emitted so far may be lost with it: go on as another source, whose credits are counted anew.
    """

    behavior: str
    source: int


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Write your part of checkpoint `number`; a source first puts its barrier into the stream."""

    number: int


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Write your part of checkpoint `number` at once, without waiting for its barrier, which may never come."""

    number: int


@dataclass(frozen=True, slots=True)
class FolderMoved:
    """Write into this folder from now on: the run's was removed, or somebody else has it."""

    run_folder: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop producing; what is under way is drained."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Stand still until told otherwise, and follow all other commands meanwhile; to sources."""

    held: bool


@dataclass(frozen=True, slots=True)
class SetHyperparameter:
    """Use another value of a hyperparameter from the next update on; to a learner."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Learn from the first weights on again, with a fresh optimiser and fresh schedules; to a learner."""

    version: int
    """Of the policy at which this was decided."""
    weights: bytes | None = None
    """A policy to begin with in place of the first weights: float32, in the order of its own; None: the first ones."""


@dataclass(frozen=True, slots=True)
class LearnNoMore:
    """Be done, as if `max_steps` were reached; to a learner."""

    why: str
    """For people."""


@dataclass(frozen=True, slots=True)
class DirectShow:
    """How an exhibition goes on: all that is asked of it, also what it does already."""

    parts: Mapping[str, Any]
    """By behaviour id: name of the player, and whether a person takes over an agent of it."""
    paused: bool = False
    speed: float = 1.0
    recorded: str = ""
    """The behaviour id whose person is recorded; empty: none."""


@dataclass(frozen=True, slots=True)
class KeysHeld:
    """All keys that the person holds who plays for a behaviour id."""

    behavior_id: str
    number: int
    """Rising with each message of a person."""
    keys: tuple[str, ...]


ControlMessage = (
    BehaviorSeen
    | LearnerReady
    | FollowerReady
    | FollowerLost
    | CreditsReturned
    | CreditRequest
    | TrainerReport
    | PartSaved
    | PartFailed
    | Scored
    | SourceEnded
    | PolicyKept
    | Exported
    | ExportFailed
    | Preparing
    | StatisticsReport
    | EpochEnded
    | Evaluated
    | LogLine
    | HostFailed
    | HostFinished
    | OpenEdge
    | DecideFor
    | Assignment
    | Matches
    | EnvironmentParameters
    | Grant
    | LearnerReplaced
    | BeginCheckpoint
    | SaveNow
    | FolderMoved
    | Stop
    | Hold
    | SetHyperparameter
    | LearnNoMore
    | BeginAnew
    | ShowAnnounced
    | PictureTaken
    | DirectShow
    | KeysHeld
)
