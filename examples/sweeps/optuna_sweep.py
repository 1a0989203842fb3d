"""Search for PPO's hyperparameters on CartPole with Optuna, which prunes trials that promise little.

pip install optuna
python examples/sweeps/optuna_sweep.py --trials 20 --steps 50000
"""

from __future__ import annotations

import argparse

import optuna

from headrace import StopRequest, SummaryWritten, run


def objective(trial: optuna.Trial, steps: int, results: str) -> float:
    """Train once; return the mean return at the end, which Optuna maximises."""
    stop = StopRequest()
    hyperparameters = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 3e-3, log=True),
        "num_epoch": trial.suggest_int("num_epoch", 2, 8),
        "buffer_size": trial.suggest_categorical("buffer_size", [1024, 2048, 4096]),
        "batch_size": 256,
        "beta": 0.0,
    }

    def on_summary(summary: SummaryWritten) -> None:
        if summary.mean_reward is not None:
            trial.report(summary.mean_reward, summary.step)
            if trial.should_prune():
                stop.set()

    result = run(
        {
            "environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 32},
            "behaviors": {
                "CartPole": {
                    "trainer_type": "ppo",
                    "max_steps": steps,
                    "summary_freq": steps // 10,
                    "time_horizon": 32,
                    "hyperparameters": hyperparameters,
                    "network_settings": {"hidden_units": 64},
                }
            },
            "checkpoint_settings": {"results_dir": results, "run_id": f"trial-{trial.number}", "force": True},
        },
        stop=stop,
        on_summary=on_summary,
    )
    if result.ended_by:
        raise optuna.TrialPruned
    return result.behaviors["CartPole"].recent_return or 0.0


def main() -> None:
    """Run the search, and print the best trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--results", default="results/optuna")
    args = parser.parse_args()
    study = optuna.create_study(
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
        sampler=optuna.samplers.TPESampler(seed=0),
    )
    study.optimize(lambda trial: objective(trial, args.steps, args.results), n_trials=args.trials)
    pruned = sum(trial.state is optuna.trial.TrialState.PRUNED for trial in study.trials)
    best = f"{study.best_value:.1f} with {study.best_params}"
    print(f"best of {len(study.trials)} trials, {pruned} of them ended early: {best}")


if __name__ == "__main__":
    main()
