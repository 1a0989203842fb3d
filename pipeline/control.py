"""Control between hosts and main: the messages, and the channel that carries them.

The messages, from hosts to main and back, are small frozen dataclasses of plain data. Each host shares one bounded,
ordered channel with main, separate from the data queues. Within a process, messages are passed as objects; between
processes they are msgpack frames (a little-endian four-byte length, then the body). Nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self

from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.codec import pack, unpack
from headrace.queues.ends import Receiver, Sender
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import Assignment, Matches
from headrace.stages.environments.parameters import EnvironmentParameters
from headrace.stages.trainer.report import TrainerReport
from headrace.startup_context import shortened

# Up: from a host to main. --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BehaviorSeen:
    """An actor has encountered a behaviour id for the first time."""

    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LearnerReady:
    """A learner has built its trainer."""

    behavior: str
    rows_per_update: int
    held_rows: int
    """Number of rows in the trainer's buffer that were restored from a checkpoint."""
    any_age: bool = False
    """True if the trainer learns from steps of any age."""
    corrects_age: bool = False
    """True if the trainer corrects for steps from slightly older policies."""
    step: int = 0
    """Trainer step from which training continues."""
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    """Values of the hyperparameters that were changed during the run, keyed by name."""


@dataclass(frozen=True, slots=True)
class FollowerReady:
    """To a follower's learner: the follower is about to join the replicas."""


@dataclass(frozen=True, slots=True)
class FollowerLost:
    """A learner has lost a follower that it needs, and waits for main to end it as if the learner were lost too."""

    how: str
    """Which follower was lost, and how, e.g. `learner-Walker-replica-1 was killed by signal 9`."""


@dataclass(frozen=True, slots=True)
class CreditRequest:
    """An actor's request for credits, with the number of credits that it has used so far."""

    source: int
    number: int
    """Sequence number of the actor's request, repeated in the grant that answers it."""
    used: Mapping[str, int]
    """Cumulative number of learning-team steps emitted or held so far, keyed by behaviour name."""
    wants: tuple[str, ...]
    """Behaviours for which the actor needs credits; it can step only once it has credits for all of them."""
    gives_back: tuple[str, ...] = ()
    """Behaviours whose unused credits the actor gives back; a waiting actor gives back all its unused credits."""
    acting: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(steps, version), keyed by behaviour name: all steps after the first `steps` come from `version` or a newer
    version.
    """


@dataclass(frozen=True, slots=True)
class CreditsReturned:
    """A stage has discarded trajectories instead of passing them to a trainer; `total` is cumulative."""

    by: str
    behavior: str
    source: int
    total: int


@dataclass(frozen=True, slots=True)
class PartSaved:
    """A host has durably written one stage's part of a checkpoint."""

    number: int
    name: str
    file: str
    size: int
    crc32: int


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A host could not write one stage's part of a checkpoint. Main abandons the checkpoint, and the run continues."""

    number: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class EpisodesScored:
    """An actor's score for the episodes played since its last report."""

    played: Mapping[str, Any]
    """A `headrace.stages.evaluation.scores.EpisodeResults` for each behaviour id."""
    complete: bool
    """True if all episodes in the actor's share have ended."""


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """A source has stopped producing steps: its recording or environments ended normally, or main stopped it."""


@dataclass(frozen=True, slots=True)
class PolicyKept:
    """The inference host has received a policy, so actors can now request its actions."""

    behavior_id: str
    version: int
    step: int
    snapshot: int


@dataclass(frozen=True, slots=True)
class PolicyExported:
    """A learner has exported a policy."""

    behavior: str
    step: int
    file: str
    reward: float | None
    onnx: str | None = None
    """Path of the policy's `.onnx` file; None if that file could not be written."""


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
    """Seconds since the host's most silent stage last made progress; 0 if no stage is silent."""
    timings: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """(seconds, count) since the last report, keyed by kind of work."""
    span_s: float = 0.0
    """Seconds since the last report, on the host's clock."""
    cpu_s: float = 0.0
    """Total CPU time of the host's process in seconds."""
    memory: int = 0
    """Resident memory of the host's process in bytes; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class PreparationNotice:
    """A host begins or ends preparatory work, such as importing torch; see `headrace.stages.activity.preparing`."""

    begins: bool


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """A trainer has completed an epoch, which is `evaluation.every` steps long."""

    behavior: str
    step: int
    """Last trainer step of the epoch."""
    values: Mapping[str, float]
    """Statistics over the entire epoch, keyed by name."""


@dataclass(frozen=True, slots=True)
class PolicyEvaluated:
    """The result of playing a policy deterministically in separate environments; see `EvaluationResult`."""

    behavior: str
    """The behaviour name."""
    step: int
    score: Mapping[str, Any]
    """A `headrace.stages.evaluation.scores.Score`, keyed by field name."""
    best: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record from a host, to show to the user."""

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
    """Path of the YAML key that caused the error; empty if no key did."""
    of_user: bool = False
    """True if the user's code raised the error, so that the traceback says more than the message."""


@dataclass(frozen=True, slots=True)
class HostFinished:
    """A host has finished its work and ends."""


@dataclass(frozen=True, slots=True)
class ShowAnnounced:
    """The state of an exhibition and the controls that it offers; see `headrace.pipeline.parts.exhibition.host`."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PictureTaken:
    """One frame of an exhibition, with its time."""

    values: Mapping[str, Any]
    image: bytes = b""
    """JPEG image; empty if `values` contains shapes to draw instead."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The items that a probe's function has returned."""

    values: tuple[Any, ...]


# Down: from main to a host. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenEdge:
    """A queue is ready for this host to open its end."""

    name: str
    """Queue name, such as `trajectories/Ball` or `policies/Ball?team=0`."""
    address: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DecideFor:
    """To the inference host: choose actions for this behaviour id. The host receives its policies afterwards."""

    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grant:
    """The ledger's answer to a request: new caps, and the lowest policy versions that may use them, keyed by behaviour.

    An actor ignores the cap for a behaviour whose credits it has given back in a later request.
    """

    source: int
    number: int
    caps: Mapping[str, int]
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LearnerReplaced:
    """A behaviour's learner was lost, and a new one replaces it.

    Steps already emitted may be lost too, so the actor continues as a new source, whose credits are counted from 0.
    """

    behavior: str
    source: int


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """To a host: write your part of checkpoint `number`. A source first puts a barrier into its stream."""

    number: int


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Write your part of checkpoint `number` immediately, without waiting for a barrier that may never come."""

    number: int


@dataclass(frozen=True, slots=True)
class FolderMoved:
    """Write to this folder from now on, because the run's folder was removed or is used by another run."""

    run_folder: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop producing, after which the pipeline drains."""


@dataclass(frozen=True, slots=True)
class Pause:
    """To sources: pause or resume producing, but keep following all other commands."""

    paused: bool


@dataclass(frozen=True, slots=True)
class SetHyperparameter:
    """To a learner: use a new hyperparameter value, starting with the next update."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """To a learner: restart from these weights or the initial ones, with a fresh optimiser and fresh schedules."""

    number: int
    """Number that increases with each restart of the learner. The learner ignores a restart that it already knows."""
    weights: bytes | None = None
    """Starting weights, as float32 in the policy's parameter order; None for the initial weights."""


@dataclass(frozen=True, slots=True)
class LearnNoMore:
    """To a learner: finish as if `max_steps` had been reached."""

    why: str
    """The reason, as text for the user."""


@dataclass(frozen=True, slots=True)
class DirectShow:
    """New settings for an exhibition; each message contains all settings, including unchanged ones."""

    parts: Mapping[str, Any]
    """The player's name, and whether a person takes over one of the agents, keyed by behaviour id."""
    paused: bool = False
    speed: float = 1.0
    recorded: str = ""
    """Behaviour id for which the recorded person plays; empty if recording is off."""


@dataclass(frozen=True, slots=True)
class KeysHeld:
    """All keys held down by the person who plays for a behaviour id."""

    behavior_id: str
    number: int
    """Sequence number, which increases with each message from a person."""
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """To a probe: call this async function with the run's configuration and these arguments."""

    function: str
    """`module:name`."""
    arguments: tuple[Any, ...]


# fmt: off
ControlMessage = (
    BehaviorSeen | LearnerReady | FollowerReady | FollowerLost | CreditsReturned | CreditRequest | TrainerReport
    | PartSaved | PartFailed | EpisodesScored | SourceEnded | PolicyKept | PolicyExported | ExportFailed
    | PreparationNotice | StatisticsReport | EpochEnded | PolicyEvaluated | LogLine | HostFailed | HostFinished
    | OpenEdge | DecideFor | Assignment | Matches | EnvironmentParameters | Grant | LearnerReplaced | BeginCheckpoint
    | SaveNow | FolderMoved | Stop | Pause | SetHyperparameter | LearnNoMore | BeginAnew | ShowAnnounced
    | PictureTaken | DirectShow | KeysHeld | ProbeRequest | ProbeAnswer
)


_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in ControlMessage.__args__}

CONTROL_BOUND = 1024
"""Maximum number of messages in transit per direction. Hosts send a few per second, so a full channel means that main
is stuck."""

_LENGTH = struct.Struct("<I")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def encode(message: ControlMessage) -> bytes:
    """Return a message as msgpack, with its texts shortened."""
    plain = [getattr(message, item.name) for item in fields(message)]
    values = [shortened(value) if isinstance(value, str) else value for value in plain]
    return pack([type(message).__name__, *values])  # type: ignore[no-any-return]


def decode(frame: bytes) -> ControlMessage:
    """Decode a frame produced by `encode`; tuples at the top level are restored as tuples."""
    name, *values = unpack(frame)
    kind = _TYPES[name]
    return kind(*(tuple(value) if isinstance(value, list) else value for value in values))  # type: ignore[no-any-return]


class ControlEnd(Protocol):
    """One end of a control channel."""

    def send(self, message: ControlMessage) -> None:
        """Send a message without waiting. Messages arrive in the order in which they were sent."""

    async def drain(self) -> None:
        """Wait while more messages than the bound are in transit; call this when sending in a loop."""

    def receive(self) -> AsyncIterator[ControlMessage]:
        """Iterate over the messages until the other end closes or dies."""

    def close(self) -> None:
        """Stop sending. Closing twice is allowed."""


@dataclass
class LocalControl:
    """A channel end within one event loop, backed by two queues, one per direction."""

    _outbox: Sender[ControlMessage]
    _inbox: Receiver[ControlMessage]

    def send(self, message: ControlMessage) -> None:
        """Send a message without waiting."""
        with contextlib.suppress(QueueClosed):
            self._outbox.put_nowait(message)

    async def drain(self) -> None:
        """Let the other end's task run."""
        await asyncio.sleep(0)

    def receive(self) -> AsyncIterator[ControlMessage]:
        """Iterate over the messages until the other end closes."""
        return aiter(self._inbox)

    def close(self) -> None:
        """Stop sending."""
        self._outbox.close()


def local_pair(name: str) -> tuple[LocalControl, LocalControl]:
    """Return both ends of a channel within one event loop: main's end, then the host's end."""
    down: AgentManagerQueue[ControlMessage] = AgentManagerQueue(f"control down {name}", CONTROL_BOUND)
    up: AgentManagerQueue[ControlMessage] = AgentManagerQueue(f"control up {name}", CONTROL_BOUND)
    return LocalControl(down, up), LocalControl(up, down)


class SocketControl:
    """A channel end between processes, on two connected sockets.

    Each socket carries one direction. With a single socket, if main wrote to a host that has just ended, the connection
    would break and lose the host's last message: the reason for its failure.
    """

    def __init__(self, inward: Streams, outward: Streams) -> None:
        self._inward = inward
        self._outward = outward
        self.idle = False
        """True while `receive` waits for a message."""

    @classmethod
    async def open(cls, inward: socket.socket, outward: socket.socket) -> Self:
        """Open an end that receives on one socket and sends on the other, taking ownership of both."""
        return cls(await asyncio.open_connection(sock=inward), await asyncio.open_connection(sock=outward))

    def send(self, message: ControlMessage) -> None:
        """Send a message without waiting."""
        _, writer = self._outward
        if not writer.is_closing():
            body = encode(message)
            writer.write(_LENGTH.pack(len(body)) + body)

    async def drain(self) -> None:
        """Wait until most of the sent data is in the socket's buffer."""
        with contextlib.suppress(ConnectionError):
            await self._outward[1].drain()

    async def receive(self) -> AsyncIterator[ControlMessage]:
        """Iterate over the messages until the other end closes or dies."""
        reader, _ = self._inward
        while True:
            try:
                self.idle = True
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                self.idle = False
                frame = await reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            yield decode(frame)
        _, writer = self._outward
        writer.transport.abort()  # the other end has closed
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()  # or asyncio would report a failed send a second time

    def close(self) -> None:
        """Stop sending and receiving; closing twice is allowed."""
        for _, writer in (self._inward, self._outward):
            writer.close()
