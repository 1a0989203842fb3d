"""Small files that stand for gigabytes: the real command refuses them by name, in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgpack
import pytest
import zstandard
from runs import COMMAND, PATIENCE_S
from stream_samples import header

from headrace.queues.stream_file import FRAME, HEADER, MAGIC, MESSAGE, PREAMBLE, VERSION, checksum, pack_frame

MEGABYTE = 1 << 20
MOST_MEMORY = 100 * MEGABYTE
"""Beside what the command takes for a good file."""

GOOD = "environment: {kind: gymnasium, id: CartPole-v1}\nbehaviors: {CartPole: {trainer_type: ppo, max_steps: 100}}\n"


def bombs(names: Iterable[str], quick: str) -> pytest.MarkDecorator:
    """One of them at every run, the others by the slow tests."""
    marked = [pytest.param(name, marks=() if name == quick else pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("name", marked)


def tower(first: str, level: str) -> str:
    """YAML of a kilobyte in which each of twelve values holds the one before ten times."""
    levels = [level.format(this=i, below=", ".join([f"*v{i - 1}"] * 10)) for i in range(1, 12)]
    return "\n".join([f"v0: &v0 {first}", *levels]) + "\n"


YAML_BOMBS = {
    "aliases": (tower("[1]", "v{this}: &v{this} [{below}]"), "more than 20,000 values"),
    "100,000 digits": (GOOD.replace("100", "9" * 100_000), "max_steps: inf is out of range"),
    "many mistakes": ("".join(f"k{i}: 1\n" for i in range(9_000)), "k99: unknown key"),
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Memory that the command takes for a good file."""
    return validated(tmp_path_factory.mktemp("good"), GOOD)[2]


@bombs(YAML_BOMBS, "aliases")
def test_a_bomb_in_a_yaml_is_a_clear_error_in_little_memory(name, tmp_path, usual):
    text, words = YAML_BOMBS[name]
    status, output, memory = validated(tmp_path, text)
    assert status == 2, output
    assert words in output
    assert "Traceback" not in output
    assert memory - usual < MOST_MEMORY


def bomb(kind: int, meta: bytes, zeros: int = 0) -> bytes:
    """A frame with a right checksum, whose content is all but nothing when it is compressed."""
    body = len(meta).to_bytes(4, "little") + meta
    payload = zstandard.ZstdCompressor().compress(body + bytes(-len(body) % 64 + zeros))
    return FRAME.pack(len(payload), kind, checksum(len(payload), kind, payload)) + payload


def empty_lists() -> bytes:
    return b"\x81\xa1x\xdd" + (35_000_000).to_bytes(4, "big") + b"\x90" * 35_000_000


FIRST = PREAMBLE.pack(MAGIC, VERSION)
GOOD_HEADER = pack_frame(HEADER, header().to_plain(), {"arrays": []}, [])
STREAM_BOMBS = {
    "a header of lists": lambda: FIRST + bomb(HEADER, empty_lists()),
    "a header of zeros": lambda: FIRST + bomb(HEADER, msgpack.packb({}), 900 * MEGABYTE),
    "a message of lists": lambda: FIRST + GOOD_HEADER + bomb(MESSAGE, empty_lists()),
}
"""Each takes a second to make."""


@bombs(STREAM_BOMBS, "a header of zeros")
def test_a_bomb_in_a_stream_is_a_clear_error_in_little_memory(name, tmp_path):
    path = tmp_path / "bomb.stream"
    path.write_bytes(STREAM_BOMBS[name]())
    assert path.stat().st_size < 100_000
    program = "import sys\nfrom headrace.queues.stream_file import StreamReader\nlist(StreamReader(sys.argv[1]))"
    status, output, memory = measured([sys.executable, "-c", program, str(path)])
    assert status == 1
    assert "StreamError" in output
    assert "claims 35,0" in output or "states" in output
    assert memory - measured([sys.executable, "-c", "import headrace.queues.stream_file"])[2] < MOST_MEMORY


def validated(folder: Path, text: str) -> tuple[int, str, int]:
    config = folder / "bomb.yaml"
    config.write_text(text)
    return measured([sys.executable, str(COMMAND), str(config), "--validate", "--no-env-check"])


MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([done.returncode, done.stdout.decode(), most * (1 if sys.platform == "darwin" else 1024)]))
"""
"""In a small process of its own: what a large one starts counts that one's memory, up to its `exec`, as its own."""


def measured(line: Sequence[str]) -> tuple[int, str, int]:
    """Exit status, output, and the most memory, in bytes, that a command has had at a time."""
    environment = {**os.environ, "PYTHONPATH": str(COMMAND.parents[1])}
    whole = [sys.executable, "-c", MEASURE, *line]
    done = subprocess.run(whole, capture_output=True, check=True, timeout=PATIENCE_S, env=environment)
    status, output, memory = json.loads(done.stdout)
    return status, output, memory
