"""What the policy server holds on one core: requests per second, and how long an answer takes.

    python benchmarks/serving.py
    python benchmarks/serving.py --protocols grpc --clients 128 --rate 2000

A perceptron of 2×64 for CartPole is trained for a moment and served by `run-pipeline --serve` in a process that is held
to one core; the clients, each with a connection of its own, have the others. Each protocol is measured in two ways:
closed, where each client asks again as soon as it has its answer, and open, where requests are due at a steady rate,
whatever has been answered, and the time of an answer counts from when its request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import msgpack
import numpy as np
import psutil

from headrace.pipeline.serving import grpc_server

ROOT = Path(__file__).resolve().parents[1]
ROW = [0.1, -0.2, 0.05, 0.3]
CONFIG = {
    "environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 8},
    "behaviors": {"CartPole": {"max_steps": 4000, "network_settings": {"hidden_units": 64, "num_layers": 2}}},
}
Ask = Callable[[], Awaitable[bool]]
"""Asks once; False if the server has refused."""


@dataclass
class Answers:
    """How requests were answered."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0

    def describe(self, elapsed_s: float) -> str:
        """Return the rate and the percentiles in words."""
        p50, p99 = (1000 * np.percentile(self.seconds, share) for share in (50, 99))
        said = f"{len(self.seconds) / elapsed_s:6.0f} answers/s, p50 {p50:5.1f} ms, p99 {p99:5.1f} ms"
        return said + (f", {self.refused} refused" if self.refused else "")


@contextmanager
def served(core: int) -> Iterator[tuple[int, int, psutil.Process]]:
    """A server that is held to a core: its ports, for HTTP and gRPC, and its process."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        command = [sys.executable, str(ROOT / "bin/run-pipeline")]
        where = ["--run-id", "bench", "--results-dir", folder]
        subprocess.run([*command, str(config), *where], check=True, capture_output=True)
        serve = [*command, "--serve", str(Path(folder) / "bench"), "--listen=0"]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
            os.sched_setaffinity(process.pid, {core})  # before it has threads, which inherit this
            assert process.stdout is not None, "asked for with PIPE"
            said = ""
            while "Serving" not in said:
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"the server has ended: {said}")
                said += line
            http, rpc = (int(found) for found in re.findall(r"(?:localhost:|port )(\d+)", said))
            try:
                yield http, rpc, psutil.Process(process.pid)
            finally:
                process.terminate()


@asynccontextmanager
async def http_client(port: int, kind: str) -> AsyncIterator[Ask]:
    """A client with a connection that stays open."""
    asked = {"observations": [[ROW]]}
    body = json.dumps(asked).encode() if kind == "json" else msgpack.packb(asked)
    head = f"POST /api/models/CartPole/act HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/{kind}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def ask() -> bool:
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        assert length is not None, answer
        await reader.readexactly(int(length[1]))
        return answer.startswith(b"HTTP/1.1 200")

    try:
        yield ask
    finally:
        writer.close()


@asynccontextmanager
async def grpc_client(port: int, _: str) -> AsyncIterator[Ask]:
    """A client with a channel of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        act = channel.unary_unary(
            f"/{grpc_server.SERVICE}/Act", grpc_server.ActRequest.SerializeToString, grpc_server.ActResponse.FromString
        )
        request = grpc_server.ActRequest(model="CartPole", observations=[{"values": ROW}])

        async def ask() -> bool:
            try:
                await act(request)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                return False
            return True

        yield ask


async def closed(asks: list[Ask], seconds: float) -> str:
    """Let each client ask as soon as it has its answer."""
    answers, end = Answers(), time.perf_counter() + seconds

    async def go_on(ask: Ask) -> None:
        while (began := time.perf_counter()) < end:
            if await ask():
                answers.seconds.append(time.perf_counter() - began)
            else:
                answers.refused += 1

    await asyncio.gather(*map(go_on, asks))
    return answers.describe(time.perf_counter() - end + seconds)


async def at_rate(asks: list[Ask], rate: float, seconds: float) -> str:
    """Let requests be due at a steady rate, one client after the other; who is late asks at once."""
    answers, begin = Answers(), time.perf_counter() + 0.1

    async def go_on(first: int, ask: Ask) -> None:
        for number in range(first, int(rate * seconds), len(asks)):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if await ask():
                answers.seconds.append(time.perf_counter() - due)
            else:
                answers.refused += 1

    await asyncio.gather(*(go_on(first, ask) for first, ask in enumerate(asks)))
    return answers.describe(time.perf_counter() - begin)


async def measure(protocol: str, port: int, server: psutil.Process, options: argparse.Namespace) -> None:
    """Measure a protocol in both ways, with the same connections."""
    clients = [(grpc_client if protocol == "grpc" else http_client)(port, protocol) for _ in range(options.clients)]
    asks = [await client.__aenter__() for client in clients]
    try:
        await closed(asks, 1.0)  # connections, caches
        for name, run in (
            ("closed", closed(asks, options.seconds)),
            (f"open, {options.rate:.0f}/s", at_rate(asks, options.rate, options.seconds)),
        ):
            before, own, began = _cpu_s(server), time.process_time(), time.perf_counter()
            said = await run
            elapsed = time.perf_counter() - began
            used = [(_cpu_s(server) - before) / elapsed, (time.process_time() - own) / elapsed]
            print(f"{protocol:8}{name:14}{said}; server {used[0]:.0%} of a core, clients {used[1]:.0%}", flush=True)
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Print both ways for each protocol."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", default=["json", "msgpack", "grpc"])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1000.0, help="requests per second of the open way")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this takes two cores: one for the server, one for the clients")
    with served(cores[0]) as (http, rpc, process):
        os.sched_setaffinity(0, cores[1:])
        print(f"{options.clients} clients, one row a request, {platform.machine()}, {len(cores)} cores")
        for protocol in options.protocols:
            asyncio.run(measure(protocol, rpc if protocol == "grpc" else http, process, options))


if __name__ == "__main__":
    main()
