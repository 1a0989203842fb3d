"""TensorBoard logs of Stable-Baselines3 and CleanRL, under Headrace's names of statistics."""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path
from statistics import fmean

from headrace.pipeline.reporting.console import EPISODE_LENGTH, REWARD
from headrace.pipeline.reporting.history import History, Point, read_events

OTHER = "log of another library"
"""Category of all curves of these logs, which name no behaviour."""
_EPISODES = 100
"""Number of episodes in a mean, as in Stable-Baselines3; CleanRL logs each episode."""
_NAMES = {
    REWARD: ("rollout/ep_rew_mean", "charts/episodic_return"),
    EPISODE_LENGTH: ("rollout/ep_len_mean", "charts/episodic_length"),
    "Environment/Success Rate": ("rollout/success_rate",),
    "Evaluation/Cumulative Reward": ("eval/mean_reward",),
    "Policy/Approximate KL": ("train/approx_kl", "losses/approx_kl"),
    "Policy/Clip Fraction": ("train/clip_fraction", "losses/clipfrac"),
    "Policy/Entropy": ("train/entropy_loss", "losses/entropy"),
    "Policy/Extrinsic Explained Variance": ("train/explained_variance", "losses/explained_variance"),
    "Losses/Value Loss": ("train/value_loss", "losses/value_loss"),
    "Policy/Learning Rate": ("train/learning_rate", "charts/learning_rate"),
}
"""The other libraries' tags, keyed by Headrace's names."""
_OURS = {tag: name for name, tags in _NAMES.items() for tag in tags}
_FACTORS = {"train/entropy_loss": -1.0, "losses/value_loss": 2.0}
"""Factors on values whose definition differs: a negative entropy, and half of the squared error."""


class _OtherLog(History):
    """Keeps only the statistics that Headrace has too."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_EPISODES))

    def add(self, category: str, name: str, point: Point) -> None:
        """Add a point under Headrace's name of the statistic."""
        if name in _OURS:
            step, at, value = point
            if name.startswith("charts/episodic_"):
                self._recent[name].append(value)
                value = fmean(self._recent[name])
            super().add(OTHER, _OURS[name], (step, at, _FACTORS.get(name, 1.0) * value))


def read_other_logs(folder: Path) -> dict[Path, History]:
    """Return the curves of the logs in a folder and below it, keyed by the log's folder, in the category `OTHER`."""
    found: dict[Path, History] = {}
    for log in sorted({path.parent for path in folder.glob("**/events.out.tfevents.*")}):
        read_events(log, (), history := _OtherLog())
        if history.categories():
            found[log] = history
    return found
