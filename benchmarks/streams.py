"""Measures the cost of recording and replaying: `python benchmarks/streams.py`.

Prints milliseconds per message and MB/s (of uncompressed arrays) for trajectory batches of three sizes, with noisy
synthetic floats (the worst case for compression) and with repeating floats. Numbers are medians; everything stays in
the page cache.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from headrace.queues import codec
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.queues.stream_file import StreamHeader, StreamReader, StreamWriter

SPEC = BehaviorSpec("Bench", (ObservationSpec("vector", (24,)),), ActionSpec(continuous_size=4))
HEADER = StreamHeader.of("bench", 0.0, ["trainer"], [SPEC])
REPEATS = 5


def batch(rows: int, noisy: bool) -> TrajectoryBatch:
    rng = np.random.default_rng(0)
    lengths = np.full(rows // 64, 64, np.int32)

    def column(width: int) -> np.ndarray:
        values = rng.normal(size=(rows, width)).astype(np.float32)
        return values if noisy else np.round(values)

    columns = {
        "obs_0": column(24),
        "continuous_actions": column(4),
        "log_probs": column(4),
        "rewards": column(1)[:, 0],
    }
    finals = {"lengths": lengths, "next_obs_0": column(24)[: len(lengths)]}
    return TrajectoryBatch("Bench", 0, columns, finals)


def write_s(path: Path, message: TrajectoryBatch, count: int) -> float:
    """Return the seconds of the writes alone, which is what recording costs; the final flush happens once per run."""
    path.unlink(missing_ok=True)
    with StreamWriter(path, HEADER) as writer:
        began = time.perf_counter()
        for i in range(count):
            writer.write("trainer", message, float(i))
        return time.perf_counter() - began


def read_s(path: Path) -> float:
    began = time.perf_counter()
    for _ in StreamReader(path):
        pass
    return time.perf_counter() - began


def measure(folder: Path, rows: int, noisy: bool) -> None:
    message = batch(rows, noisy)
    megabytes = codec.offsets(codec.describe(message)[0])[1] / 1e6
    count = max(4, int(20 / megabytes))
    path = folder / "bench.stream"
    write_ms = statistics.median(write_s(path, message, count) for _ in range(REPEATS)) * 1e3 / count
    read_ms = statistics.median(read_s(path) for _ in range(REPEATS)) * 1e3 / count
    size = path.stat().st_size / count / 1e6 / megabytes
    print(
        f"{rows:>7} {megabytes:>8.3f} {'noisy' if noisy else 'repeating':>10} {write_ms:>9.3f} "
        f"{megabytes / write_ms * 1e3:>8.0f} {read_ms:>9.3f} {megabytes / read_ms * 1e3:>8.0f} {size:>7.0%}"
    )


def main() -> None:
    print("   rows       MB     floats  write ms     MB/s   read ms     MB/s    size")
    with tempfile.TemporaryDirectory() as folder:
        for rows in (64, 2048, 10240):
            for noisy in (True, False):
                measure(Path(folder), rows, noisy)


if __name__ == "__main__":
    main()
