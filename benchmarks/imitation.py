"""What is learned from twenty episodes of an expert on Pendulum-v1, and that it is learned from what the expert did.

    python benchmarks/imitation.py --seeds 0 1 2                          all rows of the table in docs/imitation.md
    python benchmarks/imitation.py bc bc-shuffled --seeds 0 1 2 3 4       some of them

Trains an expert with config/examples/pendulum.yaml (or takes `--expert results/pendulum`), records twenty episodes
of it, and imitates them as pendulum-bc.yaml and pendulum-gail.yaml say. Scores are (return - random) / (expert -
random), of 30 episodes with deterministic actions each. GAIL's are the mean of the policies at 6, 8, 10 and 12 thousand
steps: it is a game of two that goes on, and what counts is what it stays with, not where it happens to be at the end.

The controls have the demonstrated actions in another order. `-shuffled` leaves the observations as they were, beside
which the actions then make no sense. `-played` plays the shuffled actions in the environment and records what comes of
it: demonstrations of somebody who does the same things at the wrong times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from bare_loop import evaluate_policy

ROOT = Path(__file__).resolve().parents[1]
# Instead of this file's folder, which would make `acceptance` mean another file.
sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(path for path in sys.path if Path(path) != ROOT / "benchmarks")]

from acceptance.recording import EDGE, record  # noqa: E402 - the path has to be set first

from headrace.config import load_config  # noqa: E402
from headrace.pipeline.policies.export import exports_by_step, load_acting_policy  # noqa: E402
from headrace.pipeline.run import RunOptions, run  # noqa: E402
from headrace.queues.messages import ActionBatch, TrajectoryBatch  # noqa: E402
from headrace.queues.stream_reader import StreamReader  # noqa: E402
from headrace.queues.stream_writer import StreamWriter  # noqa: E402
from headrace.stages.environment.factory import EnvironmentRequest, make_group  # noqa: E402
from headrace.stages.environment.protocol import AgentSteps  # noqa: E402
from headrace.stages.policy.protocol import ActingPolicy, Decision  # noqa: E402

BEHAVIOR = "Pendulum"
STEPS = 20 * 200
"""Twenty episodes."""
LEARNED = {"bc": 200_000, "gail": 12_000}
JUDGED = {"bc": 1, "gail": 4}
"""How many policies count, of six that are exported on the way: the last ones."""
CASES = ("bc", "bc-shuffled", "bc-played", "gail", "gail-shuffled", "gail-played")


def continuous(actions: np.ndarray) -> ActionBatch:
    """Actions [d, 1] of a behaviour that has nothing to choose."""
    return ActionBatch(actions.astype(np.float32), np.zeros((len(actions), 0), np.int32))


class Player:
    """Plays with a policy, as while it trained."""

    def __init__(self, policy: ActingPolicy, seed: int) -> None:
        self._policy, self._random = policy, np.random.default_rng(seed)

    def __call__(self, rows: AgentSteps) -> ActionBatch:
        """Actions of the rows that ask for some."""
        observations = tuple(values[rows.ended :] for values in rows.observations)
        return self._policy.act(observations, None, self._random).actions


class Repeater:
    """Does the same things whatever it sees: the next of the actions [n, 1]."""

    def __init__(self, actions: np.ndarray) -> None:
        self._actions = iter(actions)

    def __call__(self, rows: AgentSteps) -> ActionBatch:
        """Actions of the rows that ask for some; past the end of all, nothing is done."""
        wanted = len(rows.agent_ids) - rows.ended
        nothing = np.zeros(1, np.float32)
        return continuous(np.stack([next(self._actions, nothing) for _ in range(wanted)]))


class Guesser:
    """Acts at random."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def act(self, observations: tuple[np.ndarray, ...], *_: object, **__: object) -> Decision:
        """Actions in [-1, 1], whatever is seen."""
        return Decision(continuous(self._random.uniform(-1, 1, (len(observations[0]), 1))), {})


def trained(example: str, results: Path, *changes: str) -> Path:
    """Run an example; its folder, in which the trained policy is."""
    overrides = (f"checkpoint_settings.results_dir={results}", "checkpoint_settings.run_id=run", *changes)
    run(load_config(ROOT / f"config/examples/{example}.yaml", list(overrides)), RunOptions())
    return results / "run"


def policies_of(folder: Path, newest: int = 1) -> list[ActingPolicy]:
    """The newest policies of a run."""
    return [load_acting_policy(path) for path in exports_by_step(folder / BEHAVIOR, BEHAVIOR)[-newest:]]


def recorded(expert: Player | Repeater, path: Path) -> Path:
    """A recording of 4000 steps."""
    config = load_config(ROOT / "config/examples/pendulum.yaml")
    return record(make_group(EnvironmentRequest(config)), expert, path, STEPS)


def batches(path: Path) -> Iterator[TrajectoryBatch]:
    """What was recorded."""
    for frame in StreamReader(path):
        assert isinstance(frame.message, TrajectoryBatch), "nothing else goes over this edge"
        yield frame.message


def shuffled_actions(path: Path) -> np.ndarray:
    """All actions [n, 1] of a recording, in another order, always the same."""
    actions = np.concatenate([batch.rows["continuous_actions"] for batch in batches(path)])
    return np.random.default_rng(0).permutation(actions)


def with_actions(path: Path, actions: np.ndarray, changed: Path) -> Path:
    """A copy of a recording with other actions beside what was seen."""
    with StreamWriter(changed, StreamReader(path).header) as writer:
        at = 0
        for number, batch in enumerate(batches(path)):
            changed_batch = batch.replace(continuous_actions=actions[at : at + batch.num_rows])
            writer.write(EDGE, changed_batch, float(number))
            at += batch.num_rows
    return changed


def main() -> None:
    """Train the expert, record it, and print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="case", help=f"some of {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--expert", type=Path, help="folder of a run of pendulum.yaml, to not train one")
    asked = parser.parse_args()
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (expert,) = policies_of(asked.expert or trained("pendulum", folder / "expert", "env_settings.seed=1"))
        best = evaluate_policy("Pendulum-v1", expert, 30, 0)
        worst = evaluate_policy("Pendulum-v1", Guesser(0), 100, 0)
        print(f"expert {best:.0f}, random play {worst:.0f}", flush=True)
        plain = recorded(Player(expert, 0), folder / "plain.stream")
        mixed = shuffled_actions(plain)
        demonstrations = {
            "": plain,
            "shuffled": with_actions(plain, mixed, folder / "shuffled.stream"),
            "played": recorded(Repeater(mixed), folder / "played.stream"),
        }
        for case in asked.cases:
            way, _, how = case.partition("-")
            where = "hyperparameters" if way == "bc" else "reward_signals.gail"
            scores = []
            for seed in asked.seeds:
                changes = (
                    f"behaviors.{BEHAVIOR}.{where}.demo_path={demonstrations[how]}",
                    f"behaviors.{BEHAVIOR}.max_steps={LEARNED[way]}",
                    f"behaviors.{BEHAVIOR}.checkpoint_interval={LEARNED[way] // 6}",
                    "evaluation=null",
                    f"env_settings.seed={seed}",
                )
                pupils = policies_of(trained(f"pendulum-{way}", folder / f"{case}-{seed}", *changes), JUDGED[way])
                returns = mean(evaluate_policy("Pendulum-v1", pupil, 30, seed) for pupil in pupils)
                scores.append((returns - worst) / (best - worst))
            print(f"{case:<14}", "  ".join(f"{score:5.2f}" for score in scores), flush=True)


if __name__ == "__main__":
    main()
