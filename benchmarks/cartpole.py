"""The pipeline against a bare synchronous loop of the same environment, network, optimizer and update.

CartPole as in docs/performance.md (64 environments, 2×64 tanh, buffer 2048, minibatch 256, 4 epochs), one thread
per process, default hosts and lag. Pairs are run in turn, so that both sides meet the same machine; the ratio counts.

    python benchmarks/cartpole.py --pairs 7

Rates are steady-state: from the first to the last summary on the pipeline's side (its start-up, mostly importing torch,
is left out, as the bare loop's is), CPU shares are those of the main process over the same stretch. The learner is busy
in updates; the rest is what it waits for steps, takes them in and sends policies.
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

import psutil
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent
FROM_STEP, TO_STEP = 40_000, 240_000
_BARE = (
    "import sys; sys.path[:0] = ['.', 'benchmarks']\n"
    "import torch; torch.set_num_threads(1)\n"
    "from bare_loop import TASKS, run_bare\n"
    "print(run_bare(TASKS['cartpole'], seed=int(sys.argv[1]), max_steps=250_000).steps_per_s)\n"
)


def bare(seed: int) -> float:
    """Steps per second of the bare loop."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    output = subprocess.run(
        [sys.executable, "-c", _BARE, str(seed)], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return float(output.stdout.split()[-1])


def pipeline(seed: int) -> tuple[float, float, float]:
    """Steps per second of the pipeline; meanwhile the main process's share of a core, and that of time in updates."""
    with tempfile.TemporaryDirectory() as results:
        command = [
            sys.executable, str(ROOT / "bin/run-pipeline"), str(ROOT / "config/examples/cartpole.yaml"),
            "--seed", str(seed), "--run-id", "bench", "--results-dir", results,
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            cpu = _sample_cpu(process)
        if process.returncode:
            raise SystemExit(f"the pipeline ended with status {process.returncode}: {' '.join(command)}")
        events = EventAccumulator(str(Path(results) / "bench" / "CartPole"))
        events.Reload()
        at = {scalar.step: scalar.wall_time for scalar in events.Scalars("Policy/Learning Rate")}
        took, rows = (
            mean(
                scalar.value
                for scalar in events.Scalars(f"Pipeline/Update {name}")
                if FROM_STEP < scalar.step <= TO_STEP
            )
            for name in ("Duration", "Experiences")
        )
    begin, end = at[FROM_STEP], at[TO_STEP]
    inside = [used for when, used in cpu if begin <= when <= end]
    speed = (TO_STEP - FROM_STEP) / (end - begin)
    return speed, (inside[-1] - inside[0]) / (end - begin), speed * took / rows


def _sample_cpu(process: subprocess.Popen[bytes]) -> list[tuple[float, float]]:
    main = psutil.Process(process.pid)
    samples = []
    while process.poll() is None:
        try:
            times = main.cpu_times()
        except psutil.NoSuchProcess:
            break
        samples.append((time.time(), times.user + times.system))
        time.sleep(0.05)
    return samples


def main() -> None:
    """Run pairs and print them with the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    pairs = parser.parse_args().pairs
    ratios, shares, times = [], [], []
    print(f"{'pair':>4} {'bare steps/s':>13} {'pipeline steps/s':>17} {'ratio':>6} {'main CPU':>9} {'in updates':>10}")
    for seed in range(pairs):
        # Who goes first changes, so that a drift of the machine favours nobody.
        if seed % 2:
            fast, share, busy = pipeline(seed)
            slow = bare(seed)
        else:
            slow = bare(seed)
            fast, share, busy = pipeline(seed)
        ratios.append(fast / slow)
        shares.append(share)
        times.append(busy)
        print(f"{seed:>4} {slow:>13,.0f} {fast:>17,.0f} {fast / slow:>6.2f} {share:>8.1%} {busy:>10.1%}", flush=True)
    print(
        f"medians: ratio {median(ratios):.2f}, main process {median(shares):.1%} of one core, "
        f"learner {median(times):.1%} of the time in updates"
    )


if __name__ == "__main__":
    main()
