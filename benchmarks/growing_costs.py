"""What growing costs, measured here: the figures that benchmarks/growing.py is fed with, and runs to compare it with.

    python benchmarks/growing_costs.py ledger
    python benchmarks/growing_costs.py runs --kind process --actors 1 2 4
    python benchmarks/growing_costs.py runs --kind ray --actors 1 2 4
    python benchmarks/growing_costs.py objects

`ledger`: CPU time of main's account of credits in a round in which all actors wait: each asks, gets back what was
learned from and is granted as much. `runs`: CartPole with hosts of a kind, from the first to the last summary; CPU time
by process, so that other work on the machine falsifies it little. `objects`: calls and policies on Ray.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from headrace.pipeline.control.credits import CreditLedger, CreditRequest

ROOT = Path(__file__).resolve().parent.parent
SUMMARY, STEPS = 10_000, 120_000
PART = 512
"""Credits of each actor in an update, for `ledger`."""


def ledger_s(actors: int, rounds: int) -> float:
    """CPU seconds of a round: every actor asks while nothing is left, gets its credits back and is granted new ones."""
    ledger = CreditLedger()
    ledger.open_window("B", PART * actors, 0)
    for source in range(actors):
        ledger.add_source(source)
        ledger.request(CreditRequest(source, 0, {"B": 0}, ("B",), ("B",)))
    began = time.process_time()
    for number in range(1, rounds + 1):
        for source in range(actors):
            ledger.request(CreditRequest(source, number, {"B": number * PART}, ("B",), ("B",)))
        ledger.learned("B", number)
        granted = sum(len(ledger.returned("trainer", "B", source, number * PART)) for source in range(actors))
        assert granted == actors, (granted, actors)
    return (time.process_time() - began) / rounds


def run(kind: str, actors: int) -> str:
    """One run of CartPole; a line of the table."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    hosts = f"pipeline.hosts.actors.kind={kind}", f"pipeline.hosts.learners.kind={kind}"
    sets = [*hosts, f"pipeline.hosts.actors.replicas={actors}", "pipeline.max_policy_lag=1"]
    sets += [f"behaviors.CartPole.max_steps={STEPS}", f"behaviors.CartPole.summary_freq={SUMMARY}"]
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, str(ROOT / "bin/run-pipeline"), str(ROOT / "config/examples/cartpole.yaml")]
        command += ["--run-id", "run", "--results-dir", results, *(word for s in sets for word in ("--set", s))]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            samples = _sample(process)
        if process.returncode:
            raise SystemExit(f"the run ended with status {process.returncode}: {' '.join(command)}")
        events = EventAccumulator(str(Path(results) / "run" / "CartPole"), size_guidance={"scalars": 0})
        events.Reload()
        at = {scalar.step: scalar.wall_time for scalar in events.Scalars("Policy/Learning Rate")}
        first, last = SUMMARY, max(at)
        lag, update = (
            mean(s.value for s in events.Scalars(name)) for name in ("Policy/Lag", "Pipeline/Update Duration")
        )
    inside = [sample for when, sample in samples if at[first] <= when <= at[last]]
    steps, took = last - first, at[last] - at[first]
    used = {pid: inside[-1][pid][1] - inside[0].get(pid, ("", 0.0))[1] for pid in inside[-1]}
    names = {pid: inside[-1][pid][0] for pid in used}
    by_use = sorted((pid for pid in used if names[pid] == "host"), key=lambda pid: -used[pid])
    learner, acting = used[by_use[0]], sum(used[pid] for pid in by_use[1:])
    others = sum(used[pid] for pid in used if names[pid] == "other")
    head = next(used[pid] for pid in used if names[pid] == "main")
    per_step = [1e6 * value / steps for value in (learner, acting, head, others)]
    cells = " | ".join(f"{value:.1f}" for value in per_step)
    return (
        f"| {kind} | {actors} | {steps / took:,.0f} | {cells} | {1e3 * update:.0f} | {learner / took:.2f} | {lag:.2f} |"
    )


def _sample(process: subprocess.Popen[bytes]) -> list[tuple[float, dict[int, tuple[str, float]]]]:
    """CPU seconds of the run's processes by id, each with its part: main, a host, or another."""
    main, samples = psutil.Process(process.pid), []
    while process.poll() is None:
        found = {}
        try:
            for each in [main, *main.children(recursive=True)]:
                line = " ".join(each.cmdline())
                part = (
                    "host" if "headrace.pipeline.hosts.child" in line or line.startswith("ray::RayWorker") else "other"
                )
                times = each.cpu_times()
                found[each.pid] = ("main" if each == main else part, times.user + times.system)
        except psutil.NoSuchProcess:
            continue
        samples.append((time.time(), found))
        time.sleep(0.25)
    return samples


def objects() -> None:
    """CPU time of main per call, and per policy for one more actor, on a Ray of one node."""
    import ray

    os.environ["RAY_AUTH_MODE"] = "disabled"  # else it writes a secret into the home folder
    ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)

    class Sink:
        async def take(self, item: object) -> bool:
            return True

    sink = ray.remote(num_cpus=0)(Sink).options(max_concurrency=1000).remote()
    ray.get(sink.take.remote(0))
    small, policy = {"cap": 1}, np.zeros(100_000, np.float32)
    for name, item, count in (
        ("a small message", small, 1000),
        ("a policy of 0.4 MB, stored once", ray.put(policy), 1000),
    ):
        times = []
        for _ in range(5):
            began, wall = time.process_time(), time.perf_counter()
            ray.get([sink.take.remote(item) for _ in range(count)])
            times.append(((time.process_time() - began) / count, (time.perf_counter() - wall) / count))
        cpu, wall = (median(t[n] for t in times) * 1e6 for n in (0, 1))
        print(f"{name}: {cpu:.0f} µs of CPU in the caller, {wall:.0f} µs from one to the next")
    ray.shutdown()


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ledger", "runs", "objects"))
    parser.add_argument("--kind", default="process", choices=("process", "ray"))
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    if arguments.what == "ledger":
        for actors, rounds in ((1, 2000), (10, 200), (32, 40), (100, 2)):
            print(f"{actors:>4} actors: {ledger_s(actors, rounds) * 1e3:.3f} ms of CPU per round")
    elif arguments.what == "objects":
        objects()
    else:
        print(
            "| hosts | actors | steps/s | µs of CPU per step: learner | actors | main | Ray's own | ms per update",
            end=" ",
        )
        print("| learner's share of a core | lag |")
        for actors in arguments.actors:
            print(run(arguments.kind, actors), flush=True)


if __name__ == "__main__":
    main()
