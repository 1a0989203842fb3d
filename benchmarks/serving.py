"""Measures the policy server on one core: answers per second, their latency, and their CPU cost.

    python benchmarks/serving.py
    python benchmarks/serving.py --ways act ModelInfer --clients 1 8 600

A 2×64 MLP for CartPole is trained briefly and served by `run-pipeline --serve` in a process pinned to one core.
`h2load` (from nghttp2; Debian's `nghttp2-client`), which is written in C, uses the other cores. It speaks HTTP/1.1 and
HTTP/2, and so gRPC, over one connection per client; each client sends its next request once it has its answer. Over
gRPC, `h2load` sees status 200 for all answers; answers that take as long as the server delays a refusal count as
refused.

If the machine has other work, `--ahead` (as root) gives both programs a higher priority, and the server's gRPC threads
a higher priority than its event loop, which is their order on an idle machine. Linux then pauses them for 0.05 s in
each second, which shows in the p99 of many clients.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil

from headrace.pipeline.serving.kserve_grpc import SERVICE, message
from headrace.pipeline.serving.service import ServingLimits

ROOT = Path(__file__).resolve().parents[1]
ROW = [0.1, -0.2, 0.05, 0.3]
CONFIG = {
    "environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 8},
    "behaviors": {"CartPole": {"max_steps": 4000, "network_settings": {"hidden_units": 64, "num_layers": 2}}},
}
EMPTY = "ServerLive"
"""A call without a decision, which measures gRPC itself."""
TENSOR = {"name": "observation", "datatype": "FP32", "shape": [1, 4]}


def _framed(body: bytes) -> bytes:
    return struct.pack(">BI", 0, len(body)) + body


def ways() -> dict[str, tuple[str, bytes]]:
    """Return the URL path and the body of each kind of request."""
    infer = message("ModelInferRequest")(
        model_name="CartPole", inputs=[TENSOR], raw_input_contents=[np.array(ROW, np.float32).tobytes()]
    )
    return {
        "act": ("/api/models/CartPole/act", json.dumps({"observations": [[ROW]]}).encode()),
        "infer": ("/v2/models/CartPole/infer", json.dumps({"inputs": [{**TENSOR, "data": ROW}]}).encode()),
        "ModelInfer": (f"/{SERVICE}/ModelInfer", _framed(infer.SerializeToString())),
        EMPTY: (f"/{SERVICE}/ServerLive", _framed(b"")),
    }


@contextmanager
def served(folder: Path, core: int) -> Iterator[tuple[int, int, psutil.Process]]:
    """Serve a model on one core; yield the HTTP port, the gRPC port and the process."""
    config = folder / "config.yaml"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    command = [sys.executable, str(ROOT / "bin/run-pipeline")]
    where = ["--run-id", "bench", "--results-dir", str(folder)]
    subprocess.run([*command, str(config), *where], check=True, capture_output=True)
    serve = [*command, "--serve", str(folder / "bench"), "--listen=0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
        os.sched_setaffinity(process.pid, {core})  # before it has threads, which inherit this
        assert process.stdout is not None, "opened with PIPE"
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


def told(http: int) -> float:
    """Return the number of requests that the server has answered so far, by its own count."""
    with urlopen(f"http://127.0.0.1:{http}/metrics") as answer:
        found = re.search(r'requests_total{.*"answered"} (\S+)', answer.read().decode())
    return float(found[1]) if found else 0.0


def measure(url: str, body: Path, clients: int, seconds: int, server: psutil.Process, ahead: bool) -> str:
    """Let clients send requests for this many seconds, and report the answers."""
    rpc, log = body.suffix == ".grpc", body.with_suffix(".log")
    how = ["-H", "content-type: application/grpc", "-H", "te: trailers"] if rpc else ["--h1"]
    how += [] if rpc else ["-H", "content-type: application/json"]
    load = ["-c", str(clients), "-m1", "-D", str(seconds), "--warm-up-time=1", "-d", str(body), f"--log-file={log}"]
    if ahead:
        for thread in server.threads():
            os.sched_setscheduler(thread.id, os.SCHED_RR, os.sched_param(5 + (thread.id != server.pid)))
    before = _cpu_s(server)
    subprocess.run([*["chrt", "-r", "5"][: 3 * ahead], "h2load", *load, *how, url], check=True, capture_output=True)
    used = (_cpu_s(server) - before) * seconds / (seconds + 1)  # the log omits the second of warm-up
    status, took = np.loadtxt(log, usecols=(1, 2), unpack=True, ndmin=2)
    log.unlink()
    answered = (status == 200) & (took < 1e6 * (ServingLimits.refused_s if rpc else seconds))
    if not answered.any():
        raise SystemExit(f"{url}: nothing was answered; statuses: {sorted(set(status))}")
    p50, p99 = np.percentile(took[answered] / 1000, (50, 99))
    said = f"{clients:5} clients {answered.sum() / seconds:6.0f} answers/s, p50 {p50:5.1f} ms, p99 {p99:5.1f} ms; "
    said += f"{1000 * used / len(took):.2f} ms of the server's core each"
    refused = len(took) - answered.sum()
    return said + (f"; {refused / seconds:.0f} refused/s" if refused else "")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Print a line for each kind of request and number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=ways(), default=[*ways()])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 12, 64, 600])
    parser.add_argument("--seconds", type=int, default=4, help="of each measurement")
    parser.add_argument("--ahead", action="store_true", help="before all other work of the machine")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this takes two cores: one for the server, one for the clients")
    with tempfile.TemporaryDirectory() as name, served(Path(name), cores[0]) as (http, rpc, process):
        os.sched_setaffinity(0, cores[1:])
        print(f"one row a request, {platform.machine()}, {len(cores)} cores")
        for way in options.ways:
            path, content = ways()[way]
            body = Path(name) / f"body.{'json' if content.startswith(b'{') else 'grpc'}"
            body.write_bytes(content)
            for clients in options.clients:
                before = told(http)
                url = f"http://127.0.0.1:{http if body.suffix == '.json' else rpc}{path}"
                print(f"{way:11}{measure(url, body, clients, options.seconds, process, options.ahead)}", flush=True)
                if way != EMPTY and told(http) == before:
                    raise SystemExit("but none of them had actions")


if __name__ == "__main__":
    main()
