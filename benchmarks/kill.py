"""Kills main, hosts and helpers (`kill -9`) at random moments: `python benchmarks/kill.py --times 1000`.

Small runs of many kinds (`kill_scenarios.py`) are killed and resumed repeatedly. Killing an actor, a learner, a
follower or the sweeper does not end the run. Killing main, a shard, the central inference host or a Ray node ends it,
and `--resume` continues it. `--serve` and `--validate` are killed too. The moments are the first 100 ms of a process,
the seconds of start-up, the seconds of training, and the beginning and the end of a checkpoint, which the benchmark
watches for.

After each kill, the benchmark asserts that the exit status and the message are right, that no process and no temporary
file remains, that each checkpoint is complete, and that nothing is behind the last checkpoint before the kill: steps,
ratings, lessons, the list in training_status.json, the recordings, and a league's members and games. No trainer may get
a trajectory twice, and no league may count more games than its environments have finished. `benchmarks/standing.py` has
these checks.

The benchmark prints a table of the kills, and each violation with the folder that shows it; the exit status is 1 if
there is a violation. What is killed and when depends on `--seed` and the run's number, which a violation states, and on
the machine's timing. `--scenario` selects a kind of run and may be repeated. With `--json`, a later call continues
where an earlier one ended; `--add` adds up these files and prints the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kill_chains import MOMENTS, Chain, CommandChain, Counts
from kill_scenarios import Scenario, scenarios
from runs import COMMAND, record_expert
from standing import Violation

LIVES = 12
"""Maximum number of starts of a run before a new run begins."""
MOST_WORDS = 2000
"""Maximum number of characters in a violation's message; the violation's folder has the rest."""


def work(args: argparse.Namespace, runs: Sequence[Scenario], counts: Counts, until_kills: int, deadline: float) -> None:
    """Run chains until there have been enough kills, or the time is over."""
    while counts.kills.total() < until_kills and time.monotonic() < deadline:
        with counts.lock:
            number, counts.chains = counts.chains, counts.chains + 1
        scenario = runs[number % len(runs)]
        name = f"{scenario.name}, seed {args.seed}:{number}".replace(" ", "-")
        folder = args.folder / name.replace(",", "").replace(":", "-")
        chance = random.Random(f"{args.seed}:{number}")
        make = CommandChain if scenario.command else Chain
        chain = make(scenario, folder, chance, counts, args.expert)
        try:
            chain.run(chance.randint(2, args.lives))
        except (Violation, pytest.fail.Exception, AssertionError) as error:
            with counts.lock:
                counts.violations.append(f"{name}: {str(error)[:MOST_WORDS]}\n  after: {chain.story}\n  in: {folder}")
            print(counts.violations[-1], flush=True)
        else:
            shutil.rmtree(folder)
        with counts.lock:
            kills, violations = counts.kills.total(), len(counts.violations)
            print(f"{time.strftime('%H:%M:%S')} {name}: {kills} kills in total, {violations} violations", flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps(to_plain(counts), indent=2))


def main() -> None:
    args = _arguments()
    if args.add:
        counts = Counts()
        for path in args.add:
            add(counts, path)
        print(table(counts))
        raise SystemExit(bool(counts.violations))
    args.folder = (args.folder or Path(tempfile.mkdtemp(prefix="kill-"))).absolute()
    os.environ["PYTHONPATH"] = str(COMMAND.parents[1])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["HEADRACE_DELIVERIES"] = "once"  # trainers reject a trajectory that arrives twice
    counts = Counts()
    if args.json is not None and args.json.is_file():
        add(counts, args.json)
    print(f"seed {args.seed}, runs in {args.folder}", flush=True)
    runs = [each for each in scenarios() if not args.scenario or each.name in args.scenario]
    args.folder.mkdir(parents=True, exist_ok=True)
    recorded = [*args.folder.glob("expert/streams/*.stream")]
    args.expert = str(recorded[0]) if recorded else record_expert(args.folder)
    began, before = time.monotonic(), counts.kills.total()
    with ThreadPoolExecutor(args.workers) as pool:
        limits = before + args.times, began + 60 * args.minutes
        for done in [pool.submit(work, args, runs, counts, *limits) for _ in range(args.workers)]:
            done.result()
    print(table(counts))
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    raise SystemExit(bool(counts.violations))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="total kills of this call")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after this many minutes")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--lives", type=int, default=LIVES, help="maximum starts of a run before a new run begins")
    parser.add_argument("--scenario", action="append", choices=[each.name for each in scenarios()], help="which (all)")
    parser.add_argument("--folder", type=Path, default=None, help="of the runs; those with a violation stay there")
    parser.add_argument("--json", type=Path, default=None, help="file for the counts, to which this call adds")
    parser.add_argument("--add", type=Path, nargs="+", metavar="JSON", help="print the sum of such files")
    return parser.parse_args()


def to_plain(counts: Counts) -> dict[str, object]:
    """Return the counts as the plain data that `--json` writes."""
    return {
        "kills": [[*names, n] for names, n in sorted(counts.kills.items())],
        "moments": [[*names, n] for names, n in sorted(counts.moments.items())],
        "total": counts.kills.total(),
        "resumes": counts.resumes,
        "checkpoints": counts.checkpoints,
        "games": counts.games,
        "chains": counts.chains,
        "violations": counts.violations,
    }


def add(counts: Counts, path: Path) -> None:
    """Add the counts in an earlier call's file."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    for name in ("kills", "moments"):
        getattr(counts, name).update(Counter({(what, victim): n for what, victim, n in plain[name]}))
    for name in ("resumes", "checkpoints", "games", "chains"):
        setattr(counts, name, getattr(counts, name) + plain.get(name, 0))
    counts.violations += plain["violations"]


def table(counts: Counts) -> str:
    """Return the kills by scenario and victim, and by moment and victim, in Markdown."""
    victims = sorted({victim for _, victim in counts.kills}, key=lambda victim: (victim != "main", victim))
    lines = ["| kill -9 of | " + " | ".join(victims) + " | all |", "|---" * (len(victims) + 2) + "|"]
    for title, names, found in (
        ("", [scenario.name for scenario in scenarios()], counts.kills),
        ("moment: ", MOMENTS, counts.moments),
    ):
        for name in names:
            row = [found[name, victim] for victim in victims]
            if any(row):
                lines.append(f"| {title}{name} | " + " | ".join(map(str, [*row, sum(row)])) + " |")
    lines.append(
        f"\n{counts.kills.total()} kills, {counts.resumes} resumes, {counts.checkpoints} checkpoints read whole, "
        f"{counts.games} games of leagues counted, {len(counts.violations)} violations"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
