"""What pre-training the critic saves: steps to a mark from a policy that knows something, with and without it.

    python benchmarks/critic_pretraining.py --seeds 0 1 2

PPO plays CartPole for 40,000 steps (config/examples/cartpole.yaml) and exports. From that policy `impala`
(config/examples/cartpole-impala.yaml, at a constant rate) goes on twice: with a critic drawn at random, and with one
that was trained for `--pretrain` steps of the policy's play before the policy moves. Prints the value loss at the start
and at the end of the pre-training, the return in training right after the policy begins to move (the first tenth of the
steps), and the first step, counted from when the policy may move, at which a summary of 2,000 steps averages 475.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.config import load_config
from headrace.pipeline.run import run

EXAMPLES = Path(__file__).resolve().parents[1] / "config/examples"
MARK, PLAYED, STEPS, SUMMARY = 475.0, 40_000, 200_000, 2_000
Curve = list[tuple[int, float]]


def teach(folder: Path, seed: int) -> Path:
    """Train PPO for a while; returns its export."""
    behavior = "behaviors.CartPole"
    result = run(
        load_config(EXAMPLES / "cartpole.yaml", [*_placed(folder, "teacher", seed), f"{behavior}.max_steps={PLAYED}"])
    )
    export = result.behaviors["CartPole"].export
    assert export is not None, "a run that ended well has exported"
    return export


def go_on(folder: Path, policy: Path, seed: int, pretrain: int) -> tuple[Curve, Curve]:
    """Value losses of the pre-training, and training returns, by step."""
    name = f"pretrained-{pretrain}"
    changes = {
        "init_path": policy,
        "max_steps": STEPS + pretrain,
        "summary_freq": SUMMARY,
        "hyperparameters.critic_pretrain_steps": pretrain,
        "hyperparameters.learning_rate_schedule": "constant",
    }
    overrides = [f"behaviors.CartPole.{key}={value}" for key, value in changes.items()]
    run(load_config(EXAMPLES / "cartpole-impala.yaml", [*_placed(folder, name, seed), *overrides]))
    found = EventAccumulator(str(folder / name / "CartPole"), size_guidance={"scalars": 0}).Reload()
    losses = "critic_pretrain/baseline_loss"
    return (
        _curve(found, losses) if losses in found.Tags()["scalars"] else [],
        _curve(found, "Environment/Cumulative Reward"),
    )


def main() -> None:
    """Print a line for each run, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pretrain", type=int, default=20_000)
    asked = parser.parse_args()
    reached: dict[int, list[int]] = {0: [], asked.pretrain: []}
    print(f"{'seed':>4} {'pre-trained':>12} {'value loss':>20} {'first tenth':>12} {'reached 475':>12}")
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory() as results:
            policy = teach(Path(results), seed)
            for pretrain, steps in reached.items():
                losses, returns = go_on(Path(results), policy, seed, pretrain)
                after = [(step - pretrain, value) for step, value in returns if step > pretrain]
                first = mean(value for step, value in after if step <= STEPS / 10)
                steps.append(next((step for step, value in after if value >= MARK), STEPS))
                change = f"{losses[0][1]:.0f} to {losses[-1][1]:.0f}" if losses else "-"
                print(f"{seed:>4} {pretrain:>12} {change:>20} {first:>12.0f} {steps[-1]:>12}", flush=True)
    for pretrain, steps in reached.items():
        print(f"pre-trained for {pretrain}: {mean(steps):,.0f} steps on average")


def _placed(folder: Path, name: str, seed: int) -> list[str]:
    places = {"run_id": name, "results_dir": folder}
    return [f"env_settings.seed={seed}", *(f"checkpoint_settings.{key}={value}" for key, value in places.items())]


def _curve(found: EventAccumulator, tag: str) -> Curve:
    return [(event.step, event.value) for event in found.Scalars(tag)]


if __name__ == "__main__":
    main()
