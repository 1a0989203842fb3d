"""Whatever is done to bytes from outside: they are read, or refused by name; no hang, no code, no flood of memory.

The readers are in the table of `fuzz_readers`. What was found once stays in `FOUND`.
"""

from __future__ import annotations

import contextlib
import signal
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fuzz_readers import READERS, Reader, Silent
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

EXAMPLES = 30
PATIENCE_S = 60
"""For one example, which takes milliseconds: a slow machine is no failure."""
CANARY = "HEADRACE_CANARY"
FOUND: dict[str, Sequence[bytes]] = {
    "yaml": (
        b"behaviors: &b\n  B: &a {<<: *a, x: 1}\n",
        b"a: &a [[*a]]",
        b"a0: &a0 [1]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 12)),
        b"behaviors: {B: {max_steps: 0x" + b"f" * 5000 + b"}}",
    ),
    "part": (b"\x91" * 5000, b"\xdd\xff\xff\xff\xff"),
    "training status": (
        b'{"Ball": ' * 3000,
        b'{"Ball": {"lesson_num": 1e999}}',
        b'{"Ball": {"elo": 1' + b"0" * 5000 + b"}}",
    ),
    "manifest": (b"[" * 100_000,),
}
"""By reader: bytes on which a test has failed before."""


INTERESTING = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    10**6,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**64 - 1,
)
"""Numbers that lengths and counts are replaced by."""
FORMS = ("<B", "<H", "<I", "<Q", ">H", ">I", ">Q", "varint")


def number(form: str, value: int) -> bytes:
    """A number as a format may write a length."""
    if form == "varint":
        data = bytearray()
        while value > 0x7F:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*data, value])
    return struct.pack(form, value % 256 ** struct.calcsize(form))


@st.composite
def mutated(draw: Callable[..., Any], samples: Sequence[bytes]) -> bytes:
    """One of the samples with one to four changes: flipped bits, cuts, insertions, splices, other lengths; or noise."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(
                ("flip", "flip", "length", "length", "cut", "insert", "remove", "repeat", "splice", "noise")
            )
        )
        at = draw(st.integers(0, len(data)))
        match kind:
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "length":
                written = number(draw(st.sampled_from(FORMS)), draw(st.sampled_from(INTERESTING)))
                data[at : at + len(written)] = written
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "remove":
                del data[at : at + draw(st.integers(1, 64))]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 64))] * draw(st.integers(1, 50))
            case "splice":
                other = draw(st.sampled_from(samples))
                data[at:] = other[draw(st.integers(0, len(other))) :]
            case "noise" if draw(st.integers(0, 9)) == 0:
                data[:] = draw(st.binary(max_size=256))
    return bytes(data)


class HangError(BaseException):
    """An example was not done in time; no reader catches this by mistake."""


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that only code of a hostile sample would make."""
    return tmp_path_factory.mktemp("canary") / "made"


def hostile(canary: Path) -> bytes:
    """A pickle that makes a file when it is unpickled."""
    return b"cposix\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."


@pytest.mark.lengthy
@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_changed_bytes_are_read_or_refused(reader: Reader, canary, tmp_path):
    fuzz(reader, canary, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_many_changed_bytes_are_read_or_refused(reader: Reader, canary, tmp_path):
    """Under `-m slow` hypothesis makes ten times as many examples, other ones at every run."""
    fuzz(reader, canary, tmp_path)


def fuzz(reader: Reader, canary: Path, tmp_path: Path) -> None:
    good = list(reader.samples(tmp_path))
    for number, sample in enumerate(good):
        (tmp_path / str(number)).mkdir()
        with contextlib.suppress(Silent):
            reader.read(tmp_path / str(number), sample)

    @examples(max(1, int(EXAMPLES * reader.share)))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        tried(reader, data.draw(mutated([*good, hostile(canary)])))

    for sample in (*FOUND.get(reader.name, ()), b"", hostile(canary)):
        tried(reader, sample)
    holds()
    assert not canary.exists(), "code of a sample ran"


def tried(reader: Reader, data: bytes) -> None:
    """Read, in time and within memory; anything but a refusal is a failed test."""
    with tempfile.TemporaryDirectory() as folder, in_time(reader.name), within_memory(reader):
        with contextlib.suppress(*reader.refusals):
            reader.read(Path(folder), data)


@contextlib.contextmanager
def in_time(name: str) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError(f"{name}: not done after {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def within_memory(reader: Reader) -> Iterator[None]:
    """Check the process's own high-water mark, which Linux lets it set back; elsewhere nothing is checked."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        yield
        return
    before = memory("VmRSS")
    yield
    taken = memory("VmHWM") - before
    assert taken < reader.memory, f"{reader.name}: {taken:,} bytes were taken, at most {reader.memory:,} may be"


def memory(name: str) -> int:
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"{name}:")
    ]
    return int(line.split()[1]) * 1024
