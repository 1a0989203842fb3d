"""The table of everything that is read from outside: samples, the code that reads them, and what is a clean refusal.

`sealed` readers get past the checksums: the change is made to the content, and checksums and lengths around it are
then made right, as somebody would do who means harm.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import zstandard
from demo_samples import brain as demo_brain
from demo_samples import episode, unity_file
from fake_unity import FakeUnity, ScriptedGame
from fuzz_games import (
    godot_demos,
    godot_messages,
    open_messages,
    read_godot_message,
    read_open_message,
    read_recorded,
)
from onnx_samples import design_for, update_for
from replay_world import Piece, World, add, new_memory
from stream_samples import EVERY_KIND, SPEC, record, trajectories

from headrace.config import BehaviorSettings, load_config
from headrace.config.errors import ConfigError
from headrace.config.sections import EngineSettings
from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.policies.export import export_policy, is_export, load_acting_policy
from headrace.pipeline.run_folder.checkpoint import (
    CheckpointError,
    each_checkpoint,
    pack_state,
    unpack_state,
    write_manifest,
    write_part,
)
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.queues.errors import SpecError, StreamError
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.queues.stream_file import FRAME, MAGIC, PREAMBLE, VERSION, StreamReader, checksum, column_table
from headrace.stages.environments.engines.errors import GameRefused, MessageError
from headrace.stages.environments.engines.godot.messages import WrongColumn
from headrace.stages.environments.engines.unity import messages
from headrace.stages.environments.engines.unity.messages import check
from headrace.stages.environments.engines.unity.png import PngError, decode_into, encode_png
from headrace.stages.environments.engines.unity.side_channels import SideChannelBridge
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of, policy_layout
from headrace.stages.policy.onnx.model import onnx_model
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy
from headrace.stages.trainer.imitation.loading import read_stream
from headrace.stages.trainer.imitation.unity_demos import read_unity_demo
from headrace.stages.trainer.replay.replay_memory import ReplayFileError, read_replay, write_replay

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Reader:
    """One kind of bytes from outside."""

    name: str
    samples: Callable[[Path], Sequence[bytes]]
    """Makes good ones; called once, with a folder of its own."""
    read: Callable[[Path, bytes], object]
    """Reads one, given a folder that is otherwise empty."""
    refusals: tuple[type[Exception], ...]
    """Exceptions that the callers of the reader turn into messages for people."""
    memory: int = 100 * MEGABYTE
    """Most memory that reading may take, in bytes, beside what the samples take."""
    share: float = 1.0
    """Share of the usual number of examples: less for what is slow."""


# --- streams


def streams(folder: Path) -> list[bytes]:
    one = record(folder / "one.stream", [learned_from(0), learned_from(1)])
    return [one.read_bytes(), record(folder / "all.stream", [*EVERY_KIND[1:], learned_from(2)]).read_bytes()]


def learned_from(number: int) -> TrajectoryBatch:
    """A batch with all columns, as agent processors send it."""
    batch, (n, k) = trajectories(number), (3, 2)
    table = column_table(SPEC)
    zeros = {
        axis: {c.name: np.zeros((size, *c.shape), c.dtype) for c in table[axis]}
        for axis, size in (("rows", n), ("trajectories", k))
    }
    learning = {"learning": np.ones(k, np.bool_), "agent_ids": np.arange(k), "episode_ids": np.arange(k)}
    return replace(
        batch,
        rows={**zeros["rows"], **batch.rows},
        trajectories={**zeros["trajectories"], **batch.trajectories, **learning},
    )


def read_recording(folder: Path, data: bytes) -> None:
    path = folder / "a.stream"
    path.write_bytes(data)
    for frame in StreamReader(path):
        assert frame.message is not None
    read_stream(path, SPEC.name)


def stream_contents(folder: Path) -> list[bytes]:
    """The decompressed frames of a stream, each behind its kind and length."""
    data, at, contents = streams(folder)[1], PREAMBLE.size, b""
    while at + FRAME.size <= len(data):
        length, kind, _ = FRAME.unpack_from(data, at)
        if kind not in (1, 2):
            break
        content = zstandard.ZstdDecompressor().decompress(data[at + FRAME.size : at + FRAME.size + length])
        contents += struct.pack("<BI", kind, len(content)) + content
        at += FRAME.size + length
    return [contents]


def read_sealed_recording(folder: Path, contents: bytes) -> None:
    data, at = streams_preamble(), 0
    while at + 5 <= len(contents):
        kind, length = struct.unpack_from("<BI", contents, at)
        payload = zstandard.ZstdCompressor().compress(contents[at + 5 : at + 5 + length])
        data += FRAME.pack(len(payload), kind, checksum(len(payload), kind, payload)) + payload
        at += 5 + length
    read_recording(folder, data)


def streams_preamble() -> bytes:
    return PREAMBLE.pack(MAGIC, VERSION)


# --- run folders


def checkpoints(folder: Path) -> Path:
    parts = [write_part(folder, 3, "trainer@learner-Ball", a_state(3)), write_part(folder, 3, "ghost@main", a_state(1))]
    write_manifest(folder, 3, parts, {"Ball": 300}, {"elapsed_s": 1.5, "seed": 7, "best": {}})
    return folder / "000003"


def a_state(number: int) -> dict[str, Any]:
    return {"step": number, "weights": np.arange(12, dtype=np.float32).reshape(3, 4), "rng": ["x", None, {"k": 0.5}]}


def manifests(folder: Path) -> list[bytes]:
    return [(checkpoints(folder) / "manifest.json").read_bytes()]


def read_checkpoint(folder: Path, manifest: bytes) -> None:
    (checkpoints(folder) / "manifest.json").write_bytes(manifest)
    for found in each_checkpoint(folder):
        if isinstance(found, CheckpointError):
            raise found
        found.check()
        for name in found.parts:
            found.read(name)


def parts(folder: Path) -> list[bytes]:
    return [pack_state(a_state(3)), pack_state({"a": [a_state(1)] * 3, "b": b"bytes"})]


def statuses(folder: Path) -> list[bytes]:
    export = {
        "steps": 100,
        "file_path": "a/b.onnx",
        "reward": None,
        "creation_time": 1.5,
        "auxillary_file_paths": ["b.pt"],
    }
    ball = {"checkpoints": [export, export], "final_checkpoint": export, "elo": 1200.5, "lesson_num": 2}
    return [json.dumps({"metadata": {"stats_format_version": "0.3.0"}, "Ball": ball}).encode()]


def read_status(folder: Path, data: bytes) -> None:
    with RunFolder.create(folder, "run", resume=False, force=True, configuration="") as run:
        run.training_status.write_bytes(data)
        run.read_training_status()


def memories(folder: Path) -> list[bytes]:
    memory, world = new_memory(8), World()
    for number in range(3):
        batch = world.batch([Piece(agent=number, length=3, ending="cut", lost=False)])
        assert batch is not None
        add(memory, batch)
    write_replay(memory, folder / "replay.bin")
    return [(folder / "replay.bin").read_bytes()]


def read_memory(folder: Path, data: bytes) -> None:
    (folder / "replay.bin").write_bytes(data)
    memory = new_memory(8)
    read_replay(memory, folder / "replay.bin")
    if len(memory):
        memory.sample(4, np.random.default_rng(0))


# --- policies

SPEC_OF_VECTORS = BehaviorSpec("Ball", (ObservationSpec("vector", (3,)),), ActionSpec(1, (3, 2)))
SETTINGS = BehaviorSettings.model_validate({"network_settings": {"hidden_units": 8, "normalize": True}})


def exports(folder: Path) -> list[bytes]:
    return [an_export(folder, {"critic": {"w": np.ones((3, 2), np.float32), "n": 4}}), an_export(folder, None)]


def an_export(folder: Path, learner: Any) -> bytes:
    layout = policy_layout(design_of(SPEC_OF_VECTORS, SETTINGS))
    weights = np.ones(sum(int(np.prod(shape)) for _, shape in layout), np.float32)
    policy = PolicyUpdate("Ball", 2, weights, layout, 100)
    return export_policy(folder, policy, SPEC_OF_VECTORS, SETTINGS, learner=learner).read_bytes()


def read_policy(folder: Path, data: bytes) -> None:
    path = folder / "Ball-100.pt"
    path.write_bytes(data)
    is_export(path)
    policy = load_acting_policy(path)
    policy.act((np.zeros((2, 3), np.float32),), None, np.random.default_rng(0))


def models(folder: Path) -> list[bytes]:
    design = design_for()
    model = onnx_model(design, update_for(design))
    unsealed = onnx.load_from_string(model)
    del unsealed.metadata_props[-1]  # its checksum, which other programs do not write
    return [model, unsealed.SerializeToString()]


def read_model(folder: Path, data: bytes) -> None:
    path = folder / "Ball.onnx"
    path.write_bytes(data)
    policy = OnnxPolicy(path, design_for())
    policy.act((np.zeros((2, 3), np.float32),), None, np.random.default_rng(0))


# --- Unity


def demos(folder: Path) -> list[bytes]:
    pairs = [*episode(2), *episode(3)]
    return [
        unity_file(folder / "a.demo", pairs).read_bytes(),
        unity_file(folder / "b.demo", pairs, closed=False).read_bytes(),
    ]


def read_demo(folder: Path, data: bytes) -> None:
    path = folder / "a.demo"
    path.write_bytes(data)
    read_unity_demo(path, "Ball")


def pictures(folder: Path) -> list[bytes]:
    random = np.random.default_rng(0)
    return [encode_png(random.integers(0, 255, (channels, 6, 5), np.uint8)) for channels in (1, 3, 4)]


def read_picture(folder: Path, data: bytes) -> None:
    for channels in (1, 3, 4):
        with suppress(PngError):
            decode_into(np.zeros((channels, 6, 5), np.uint8), data)


# --- configuration


def yamls(folder: Path) -> list[bytes]:
    examples = Path(__file__).parents[1] / "config" / "examples"
    aliased = (
        b"behaviors:\n  A: {network_settings: &a {num_layers: 1}}\n  B: {network_settings: {<<: *a, hidden_units: 8}}\n"
    )
    return [
        *((examples / f"{name}.yaml").read_bytes() for name in ("volley", "pendulum-lessons", "cartpole-sac")),
        aliased,
    ]


def read_configuration(folder: Path, data: bytes) -> None:
    path = folder / "a.yaml"
    path.write_bytes(data)
    load_config(path)


# --- messages of Unity


def conversations(folder: Path) -> list[bytes]:
    """Greeting, first answer and second answer of a program with an image, a vector, masks and side channels."""

    def said(output: Any) -> bytes:
        whole = messages.UnityMessageProto(unity_output=output)
        whole.header.status = 200
        data: bytes = whole.SerializeToString()
        return struct.pack("<I", len(data)) + data

    greeting = messages.UnityOutputProto()
    hello = greeting.rl_initialization_output
    hello.name, hello.communication_version, hello.package_version = "Academy", "1.5.0", "2.0.0"
    for capability in hello.capabilities.DESCRIPTOR.fields:
        setattr(hello.capabilities, capability.name, True)
    first = messages.UnityOutputProto()
    first.rl_initialization_output.brain_parameters.append(demo_brain("Ball?team=0", 2, (3, 2)))
    first.rl_output.side_channel = bytes(16) + struct.pack("<i", 3) + b"abc"
    for agent in range(3):
        info = first.rl_output.agentInfos["Ball?team=0"].value.add(
            id=agent, reward=0.5, action_mask=[False, True, False, False, False], group_id=1, done=agent == 2
        )
        vector = info.observations.add(shape=[2], name="vector", dimension_properties=[1])
        vector.float_data.data.extend([0.25, agent])
        picture = info.observations.add(shape=[3, 6, 5], name="camera", compression_type=messages.PNG)
        picture.compressed_data = encode_png(np.full((3, 6, 5), agent, np.uint8))
    second = messages.UnityOutputProto()
    second.CopyFrom(first)
    second.ClearField("rl_initialization_output")
    return [said(greeting) + said(first) + said(second)]


def cut_up(conversation: bytes) -> list[bytes]:
    said, at = [], 0
    while at + 4 <= len(conversation) and len(said) < 6:
        (length,) = struct.unpack_from("<I", conversation, at)
        said.append(conversation[at + 4 : at + 4 + length])
        at += 4 + length
    return said


class Silent(StageError):
    """The other side has nothing more to say."""


class Recited(FakeUnity):
    """A connection whose other side says what a list holds."""

    async def receive(self) -> bytes:
        data = next(self._script, None)
        if data is None:
            raise Silent
        return data


class Recital(ScriptedGame):
    """A Unity whose first message is its greeting."""

    async def _announce(self) -> None:
        check((await self._answer("request", "says nothing")).rl_initialization_output, "Unity")


def read_messages(folder: Path, conversation: bytes) -> None:
    async def converse() -> None:
        game = Recital(0, lambda: Recited(cut_up(conversation)), make_bridge)
        await game.begin()
        while True:
            await game.step({})

    asyncio.run(converse())


def make_bridge() -> SideChannelBridge:
    return SideChannelBridge(EngineSettings(), None, 0, 0)


REFUSED = (StageError, SpecError)
OF_GODOT = (MessageError, GameRefused, WrongColumn)
READERS = (
    Reader("stream", streams, read_recording, (StreamError, StageError)),
    Reader("stream, sealed", stream_contents, read_sealed_recording, (StreamError, StageError), memory=200 * MEGABYTE),
    Reader("manifest", manifests, read_checkpoint, (CheckpointError,), share=0.5),
    Reader("part", parts, lambda folder, data: unpack_state(data), (CheckpointError,)),
    Reader("training status", statuses, read_status, (RunFolderError,), share=0.5),
    Reader("replay memory", memories, read_memory, (ReplayFileError,)),
    Reader("export", exports, read_policy, (ValueError, StageError), share=0.5),
    Reader("model", models, read_model, (StageError,), share=0.5),
    Reader("demo", demos, read_demo, (StageError,)),
    Reader("picture", pictures, read_picture, (PngError,)),
    Reader("yaml", yamls, read_configuration, (ConfigError,)),
    Reader("messages", conversations, read_messages, REFUSED),
    Reader("messages of Godot", godot_messages, read_godot_message, OF_GODOT),
    Reader("demos of Godot", godot_demos, read_recorded, (StageError,)),
    Reader("open protocol", open_messages, read_open_message, (MessageError,)),
)
