"""What is known about a behaviour's run, the table of causes, and the conditions under which each one is found.

The order matters. A cause explains the symptoms that follow it (a learning rate that is too high also collapses the
entropy), so `diagnose` returns the first finding only. First come causes that need no judgement whether the run learns:
settings, then what is constant, repeated or missing in the rows. Then come numbers beyond any healthy run's, last the
causes that are spoken of only if the return does not rise.

A statistic that nobody wrote is NaN. A condition therefore states what must be true, because no comparison with NaN is.
Thresholds are relative to a random policy, to the horizon or to the spread of returns wherever possible. Sources: [RX]
RLExplorer (arXiv 2410.04322); [Nik] Nikanjam et al. (arXiv 2101.00135); [AJ] Andy Jones, Debugging RL; [Sch] Schulman,
Nuts and bolts; [SB3] Stable-Baselines3's tips; [Pardo] Pardo et al. (arXiv 1712.00378).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from headrace.config import BehaviorSettings, RunConfig
from headrace.pipeline.reporting.history import History, HistoryWriter, Point
from headrace.pipeline.reporting.statistics import PIPELINE, Summary
from headrace.stages.errors import LoadError, blaming, describe_error, is_failure
from headrace.stages.loading import construct, find_class

log = logging.getLogger(__name__)
RETURN = "Environment/Cumulative Reward"
EPISODE_LENGTH = "Environment/Episode Length"
LEARNED = 0.45
"""Rise of the return, in standard deviations of the first policy's returns, from which a run counts as learning.
Runs that can't improve drift by up to 0.28."""
LATE = 0.35
"""Share of a run after which a rule may say that the return does not rise."""
FINDINGS = "Diagnosis/"
"""Prefix of the statistics that mark a finding at its step."""
KL = "Policy/Approximate KL"
ENTROPY = "Policy/Entropy"
SUCCESS = "Environment/Success Rate"
LENGTH = "Data/Median Episode Length"
LENGTHS = "Data/Episode Length Deviation"
TERMINATED = "Data/Terminated Episodes"
REWARDED = "Data/Rewarded Steps"
DEVIATION = "Data/Reward Deviation"
CONSTANT = "Data/Constant Observations"
STARTS = "Data/Repeated Starts"
REPEATED = "Data/Repeated Observations"
FORBIDDEN = "Data/Observations with Forbidden Choices"
EFFECT = "Data/Effect of Action"
MATTER = "Probe/Actions that Matter"
STRENGTH = "reward_signals.extrinsic.strength"
GAMMA = "reward_signals.extrinsic.gamma"
RATE = "hyperparameters.learning_rate"


@dataclass(frozen=True)
class Finding:
    """One cause why a behaviour does not learn."""

    behavior: str
    severity: str
    """`error`: the run can't learn as it is; `warning`: the cause is likely."""
    cause: str
    """Name of the cause, as docs/diagnosis.md lists it."""
    statistic: str
    value: float
    step: int
    normal: str
    """What would be normal."""
    cure: str
    """What to change: a key of the YAML with a value, or what to look for in the environment."""

    def plain(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        plain = {name: getattr(self, name) for name in ("behavior", "severity", "cause", "cure")}
        return plain | {"evidence": {name: getattr(self, name) for name in ("statistic", "value", "step", "normal")}}

    def __str__(self) -> str:
        """Return the sentence for consoles and logs."""
        seen = f"{self.statistic} is {self.value:.4g} at step {self.step}; normal: {self.normal}"
        return f"{self.behavior}: {self.cause}. {seen}. Cure: {self.cure}"


@dataclass
class Evidence:
    """One behaviour's statistics and settings.

    Args:
        behavior: name of the behaviour.
        curves: points (step, seconds, value) of each statistic, in order.
        settings: the behaviour's settings; the defaults if they are unknown, as for another library's event files.
        config: the run's configuration; None if it is unknown.
        ended: whether the run is over.
    """

    behavior: str
    curves: Mapping[str, Sequence[Point]]
    settings: BehaviorSettings = field(default_factory=lambda: BehaviorSettings.model_validate({"trainer_type": "ppo"}))
    config: RunConfig | None = None
    ended: bool = False

    def values(self, name: str) -> list[float]:
        """Return a statistic's values; empty if nobody wrote it."""
        return [value for _, _, value in self.curves.get(name, ())]

    def first(self, name: str) -> float:
        """Return a statistic's first value; NaN if nobody wrote it, as from the methods below."""
        return next(iter(self.values(name)), math.nan)

    def last(self, name: str) -> float:
        """Return a statistic's last value."""
        return next(reversed(self.values(name)), math.nan)

    def least(self, name: str) -> float:
        """Return a statistic's smallest value."""
        return min(self.values(name), default=math.nan)

    def most(self, name: str) -> float:
        """Return a statistic's largest value."""
        return max(self.values(name), default=math.nan)

    def early(self, name: str) -> float:
        """Return the mean of a statistic over the run's first tenth, at least one value."""
        values = self.values(name)
        return fmean(values[: max(1, math.ceil(0.1 * len(values)))]) if values else math.nan

    def late(self, name: str, share: float = 0.34) -> float:
        """Return the mean of a statistic over the last share of the run, at least one value."""
        values = self.values(name)
        return fmean(values[-max(1, math.ceil(share * len(values))) :]) if values else math.nan

    def setting(self, key: str, default: Any = math.nan) -> Any:
        """Return a setting by its key below the behaviour; the default if it is unknown, null or another trainer's."""
        found: Any = self.settings if self.config is not None else None
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
        return default if found is None else found

    @property
    def step(self) -> int:
        """The last step of any statistic."""
        return max((points[-1][0] for points in self.curves.values() if points), default=0)

    @property
    def is_late(self) -> bool:
        """True once enough of the run is over to judge whether the return rises."""
        return self.ended or self.step >= LATE * self.settings.max_steps

    @property
    def effect(self) -> float:
        """Rise of the return since the first tenth, in deviations of the first policy's returns; NaN if unknown."""
        values, deviation = self.values(RETURN), self.first("Data/Return Deviation")
        if len(values) < 2:
            return math.nan
        if not deviation > 1e-9:
            deviation = max(abs(values[0]), max(values) - min(values), 1e-9)
        return (self.late(RETURN, 0.1) - self.early(RETURN)) / deviation

    @property
    def fails(self) -> bool:
        """True if it is late and the return has not risen; a rule that other runs may share asks for this."""
        return not self.plays_others and self.is_late and self.effect < LEARNED

    @property
    def plays_others(self) -> bool:
        """True if the behaviour's opponents change, so that its return need not rise."""
        return self.settings.self_play is not None or self.settings.league is not None


CAUSES: dict[str, tuple[str, str, str]] = {
    "deterministic-training": ("error", "own", "network_settings.deterministic: false"),
    "too-few-updates": ("error", "[RX]; docs/tuning.md", "hyperparameters.steps_per_update: 1"),
    "strength-zero": ("error", "own", f"{STRENGTH}: 1.0"),
    "lesson-never-ends": ("error", "docs/curricula.md", "a threshold below the returns"),
    "exploration-small": ("error", "own", "network_settings.initial_log_std: 0"),
    "end-at-once": ("error", "openai/baselines #613", "look for an exception that step() swallows"),
    "reset-not": ("error", "[Nik]; [RX]", "reset() must put the state back: episodes begin where the last one ended"),
    "obs-constant": ("error", "[RX]", "fill the observation in: no component ever changes, in no episode"),
    "obs-frozen": ("error", "[RX]; [Nik]", "observe the state after the action: it never changes in an episode"),
    "obs-stale": ("error", "[RX]; [SB3]", "make the observation after the step: first steps return that of reset()"),
    "mask-forbids": ("error", "own", "check the action mask: some choice is never allowed; is it off by one?"),
    "reward-never": ("error", "[SB3]; ml-agents #4020", "reward progress, start nearer to the goal, or add curiosity"),
    "reward-constant": ("error", "stable-baselines #1167", "make the reward depend on what the agent does"),
    "reward-huge": ("warning", "[Sch]; [RX]; [AJ]", "hyperparameters.reward_normalization: true"),
    "reward-tiny": ("warning", "[Sch]; [AJ]", "hyperparameters.reward_normalization: true"),
    "reward-late": ("error", "[SB3]", "compute the reward after applying the action"),
    "memory-none": ("error", "[SB3]", "network_settings.memory"),
    "memory-short": ("error", "docs/tuning.md", "network_settings.memory"),
    "obs-scale": ("error", "[SB3]; [Sch]; [RX]", "network_settings.normalize: true"),
    "lr-high": ("error", "[Sch]; ml-agents #1169, #2059", f"a lower {RATE}"),
    "entropy-bonus": ("error", "[AJ]; docs/tuning.md", "hyperparameters.beta: 0.005"),
    "lr-low": ("error", "docs/tuning.md", f"{RATE}: 0.001"),
    "too-many-epochs": ("warning", "docs/tuning.md", "hyperparameters.num_epoch: 4"),
    "reward-loop": ("warning", "[Sch]", "pay the change of the distance, so that rewards cancel out over a loop"),
    "reward-suicide": ("warning", "ml-agents #2059, #600", "make ending early cost more than going on"),
    "gamma-low": ("warning", "docs/tuning.md; [Sch]", f"a higher {GAMMA}"),
    "gail-other-task": ("warning", "docs/imitation.md", "record demonstrations of this very task"),
    "curiosity-drowns": ("warning", "docs/rewards.md", "a lower strength"),
    "limit-as-terminated": ("warning", "[Pardo]; [SB3]", "return truncated, not terminated, at a time limit"),
    "action-scale": ("warning", "[SB3]", "declare the action space that step() uses, best Box(-1, 1)"),
    "action-ignored": ("warning", "[Nik]", "use the action in step(): nothing that follows depends on it"),
    "network-small": ("warning", "[AJ]; [RX]", "network_settings.hidden_units: 64"),
    "obs-aliased": ("warning", "[SB3]; [AJ]", "observe what is missing"),
}
"""The table: severity, source, and what to change unless the condition knows better."""
Found = Iterator[tuple[str, str, float, str] | tuple[str, str, float, str, str]]
"""Name, statistic or setting, its value, what would be normal; and the cure, if it is another than the table's."""


def diagnose(run: Evidence, rules: list[Any]) -> Finding | None:
    """Return the first finding of the table, or of the user's rules; one that raises is named and removed."""
    for name, statistic, value, normal, *cure in (found for conditions in CONDITIONS for found in conditions(run)):
        severity, _, usual = CAUSES[name]
        step = next((at for at, _, one in reversed(run.curves.get(statistic, ())) if one == value), run.step)
        return Finding(run.behavior, severity, name, statistic, float(value), step, normal, next(iter(cure), usual))
    for rule in [*rules]:
        try:
            finding: Finding | None = rule.check(run)
            if finding is not None:
                return finding
        except BaseException as error:
            if not is_failure(error):
                raise
            log.error("Rule %s raised: %s. It is not asked again.", type(rule).__name__, describe_error(error))
            rules.remove(rule)
    return None


def load_rules(config: RunConfig) -> tuple[list[Any], list[LoadError]]:
    """Return the user's rules, and the mistakes in them."""
    rules, mistakes = list[Any](), list[LoadError]()
    for index, reference in enumerate(config.pipeline.diagnosis_rules):
        where = f"pipeline.diagnosis_rules.{index}"
        try:
            with blaming("pipeline", "diagnosis_rules", index):
                found = find_class(where, reference, config.source_folder)
                if not callable(getattr(found, "check", None)):
                    raise LoadError(f"{where}: {reference} is not a rule: it has no check(run); see docs/diagnosis.md")
                rules.append(construct(where, reference, found, {}))
        except LoadError as error:
            mistakes.append(error)
    return rules, mistakes


def planned_gradient_steps(settings: BehaviorSettings) -> float | None:
    """Return the gradient steps that the settings allow in the whole run; None for a trainer with its own settings."""
    steps, get = settings.max_steps, partial(getattr, settings.hyperparameters)
    if settings.trainer_type in ("ppo", "poca"):
        minibatches = max(1, get("buffer_size") // get("batch_size"))
        return float(steps // get("buffer_size") * get("num_epoch") * minibatches)
    if settings.trainer_type != "sac":
        return None
    every = get("train_freq") / (get("gradient_steps") or 1) if get("train_freq") else get("steps_per_update")
    return float(max(0, steps - get("buffer_init_steps")) / every)


def _settings(run: Evidence) -> Found:
    network, settings, steps = run.settings.network_settings, run.settings, run.settings.max_steps
    if network.deterministic and settings.trainer_type != "bc":
        yield "deterministic-training", "network_settings.deterministic", 1, "false while training"
    planned = planned_gradient_steps(settings)
    if planned is not None and planned < 100 and steps >= 1000:  # a shorter run only tries it out
        size = 2 ** max(6, min(11, (steps // 24).bit_length() - 1))
        cure = f"hyperparameters.buffer_size: {size}, batch_size: {size // 8}, num_epoch: 4; or a larger max_steps"
        if settings.trainer_type == "sac":
            cure = f"hyperparameters.steps_per_update: 1, buffer_init_steps: {min(1000, steps // 8)}"
        yield "too-few-updates", "gradient steps of the whole run", planned, "at least 100, usually thousands", cure
    imitates = settings.trainer_type == "bc" or any("gail" in name.lower() for name in settings.signals)
    if run.setting(STRENGTH) == 0 and run.most(REWARDED) > 0 and not imitates:
        yield "strength-zero", STRENGTH, 0, "above 0"
    yield from _lessons(run)
    if network.initial_log_std <= -1.5 and network.gsde is None and (_never_rewarded(run) or run.fails):
        yield "exploration-small", "network_settings.initial_log_std", network.initial_log_std, "about 0"


def _lessons(run: Evidence) -> Found:
    spread, reached = run.first("Data/Return Deviation"), run.late(RETURN, 0.2)
    level = reached - run.late(RETURN, 0.5) < 0.1 * (spread if spread > 0 else 1.0)
    lasts = level and run.is_late and run.step >= 300 * run.early(EPISODE_LENGTH)
    for name, parameter in ((run.config and run.config.environment_parameters) or {}).items():
        curve, lessons = f"Environment/Lesson Number/{name}", getattr(parameter, "curriculum", None) or ()
        number = run.last(curve)
        known = lasts and number == run.first(curve) and number < len(lessons)
        criteria = lessons[int(number)].completion_criteria if known else None
        if criteria is not None and criteria.measure == "reward" and run.most(RETURN) < criteria.threshold:
            where = f"environment_parameters.{name}.curriculum[{number:.0f}].completion_criteria.threshold"
            normal = f"to rise: the threshold {criteria.threshold:g} is above every return"
            yield "lesson-never-ends", curve, number, normal, f"{where}: {reached - abs(reached) * 0.1 - 0.01:.3g}"


def _never_rewarded(run: Evidence) -> bool:
    """Return True if no step was rewarded, or, without measured rows, if no episode had a return."""
    returns = run.values(RETURN)
    return not any(returns) and (run.most(REWARDED) == 0 or len(returns) >= 5)


def _observations(run: Evidence) -> Found:
    at_once = run.last(LENGTH) <= 1 and run.last(LENGTHS) <= 0.1 and run.last(TERMINATED) >= 0.99
    if at_once and run.most(DEVIATION) == 0:
        yield "end-at-once", LENGTH, 1, "above 1, or a reward"
    # An episode that goes on where one was terminated ends again at once; one that was cut by a limit may just go on.
    short = run.least(LENGTH) <= 2 and run.last(TERMINATED) >= 0.5 and run.last(CONSTANT) != 1
    for name in ("Data/Starts at Last End", "Data/Component Kept over Resets"):
        if run.last(name) >= 0.5 and short:
            yield "reset-not", name, run.last(name), "below 0.1"
    observed = run.most(LENGTH) >= 2 and not run.plays_others  # an episode of one step may have nothing to observe
    nothing_happens = run.most(DEVIATION) == 0 and run.most(LENGTHS) == 0
    if run.least(CONSTANT) == 1 and observed and not nothing_happens:
        yield "obs-constant", CONSTANT, 1, "below 1"
    starts, others = run.least(STARTS), run.least(REPEATED)
    frozen, where = (starts, STARTS) if math.isnan(others) else (others, REPEATED)  # episodes of two steps
    if frozen >= 0.999 and run.last(CONSTANT) != 1:
        yield "obs-frozen", where, frozen, "below 0.9"
    if starts >= 0.95 and others <= 0.6:
        yield "obs-stale", STARTS, starts, f"about as often as in other steps ({others:.2f})"
    if run.first(FORBIDDEN) >= 0.5 and _never_rewarded(run):
        yield "mask-forbids", FORBIDDEN, run.first(FORBIDDEN), "reward in some steps with such a mask"


def _rewards(run: Evidence) -> Found:
    seeks = len(run.settings.signals) > 1 and not run.is_late
    if _never_rewarded(run) and run.values(RETURN) and not run.plays_others and not seeks:
        yield "reward-never", REWARDED if run.values(REWARDED) else RETURN, 0, "not always 0 under random actions"
    deviation = run.most(DEVIATION)
    if deviation <= 1e-9 and run.most(LENGTHS) == 0 and not run.plays_others:
        yield "reward-constant", DEVIATION, deviation, "above 0, as episodes are equally long"
    size = deviation * abs(run.setting(STRENGTH, 1.0))
    normalized = run.setting("hyperparameters.reward_normalization", False)
    low, high = (1e-4, 1000) if normalized else (1e-3, 300)  # a normalisation makes up for some of it
    if 0 < size <= low or size >= high:
        cure = f"{STRENGTH}: {1 / deviation:.1g}, or hyperparameters.reward_normalization: true"
        cure = f"divide the rewards by {deviation:.1g} in the environment" if normalized else cure
        name = "reward-huge" if size >= high else "reward-tiny"
        yield name, DEVIATION, deviation, "between 0.01 and 100 (times strength)", cure
    late, now = run.most("Data/Reward by Previous Step"), run.most("Data/Reward by Observation and Action")
    if late >= 0.5 and now <= 0.1:
        yield "reward-late", "Data/Reward by Previous Step", late, f"below that by the same step ({now:.2f})"
    yield from _memory(run)


def _memory(run: Evidence) -> Found:
    """Yield what shows that an episode's last reward depends on its first observation, and not on its last."""
    statistic, memory = "Data/Last Reward by First Observation", run.settings.network_settings.memory
    early = run.most(statistic)
    late = max(0.0, run.most("Data/Last Reward by Last Observation"))  # 0 if it is unknown
    length = run.early(EPISODE_LENGTH)
    length = 8.0 if math.isnan(length) else length
    if early >= 0.6 and early - late >= 0.3 and (memory is None or memory.sequence_length < length):
        size = max(8, 2 ** int(2 * length - 1).bit_length())
        cure = f"network_settings.memory: {{memory_size: 64, sequence_length: {size}}}"
        name = "memory-none" if memory is None else "memory-short"
        yield name, statistic, early, f"below that by the last observation ({late:.2f})", cure


def _numbers(run: Evidence) -> Found:
    """Yield numbers beyond any healthy run's, and settings that a level return confirms."""
    scale, ratio = "Data/Observation Scale", "Data/Observation Scale Ratio"
    for statistic, normal in ((scale, "about 1"), ("Data/Observation Offset", "below 10"), (ratio, "below 30")):
        value = run.first(statistic)
        beyond = (value > 100 and run.fails) or (value > 1e4 and statistic == scale)
        if beyond and not run.settings.network_settings.normalize:
            yield "obs-scale", statistic, value, normal
    yield from _learning_rate_high(run)
    yield from _entropy_bonus(run)
    low, size = run.setting(RATE) < 2e-5 and run.fails, max(abs(run.early(RETURN)), 1e-9)
    if low and run.late(KL) < 5e-4:
        yield "lr-low", KL, run.late(KL), "above 0.001"
    q = "Policy/Q1 Mean"
    if low and run.most(q) - run.least(q) < 0.2 * size:
        yield "lr-low", q, run.last(q), f"towards the discounted return (returns: {size:.3g})"
    if run.setting("hyperparameters.num_epoch") > 20 and run.late(KL) >= 0.05 and run.fails:
        yield "too-many-epochs", KL, run.late(KL), "below 0.05"


def _learning_rate_high(run: Evidence) -> Found:
    rate, trainer = run.setting(RATE, run.first("Policy/Learning Rate")), run.settings.trainer_type
    rate = rate if rate > 0 else 3e-3  # another library's log may not tell it
    cure = f"{RATE}: {min(3e-3, max(3e-4, rate / 300)) if rate > 3e-3 else rate / 10:.2g}"
    if run.most(KL) > 1 and trainer != "impala":
        yield "lr-high", KL, run.most(KL), "below 0.2 in every summary", cure
    largest = max(map(abs, run.values(RETURN)), default=0.0) * abs(run.setting(STRENGTH, 1.0))
    # SAC's values also hold the entropies to come.
    alpha, horizon = run.setting("hyperparameters.init_entcoef", 0.0), 1 / max(1e-4, 1 - run.setting(GAMMA, 0.99))
    possible = max(largest, alpha * abs(run.first(ENTROPY)) * horizon)
    for name in ("Policy/Q1 Max", "Policy/Q1 Mean", "Policy/Extrinsic Value"):
        worst = max(run.values(name), key=abs, default=0.0)
        if trainer == "sac" and abs(worst) > 100 * possible > 0:
            yield "lr-high", name, worst, f"within the possible returns (largest so far: {largest:.3g})", cure
    if rate >= 0.03 and run.fails:
        yield "lr-high", RATE, rate, "1e-4 to 3e-3", cure


def _entropy_bonus(run: Evidence) -> Found:
    first, least, most = run.first(ENTROPY), run.least(ENTROPY), run.most(ENTROPY)
    moves = most - least > 0.05 * max(1.0, abs(first)) and least < first - 0.05
    level = len(run.values(ENTROPY)) >= 3 and not moves and run.effect < LEARNED
    if run.setting("hyperparameters.beta") >= 0.1 and level and not run.plays_others:  # a mixture may be the best play
        yield "entropy-bonus", ENTROPY, run.last(ENTROPY), "to fall"
    bonus = run.setting("hyperparameters.init_entcoef") * run.late(ENTROPY)
    size, fixed = run.most("Data/Reward Size"), run.setting("hyperparameters.entropy_coefficient") == "fixed"
    if fixed and abs(bonus) > 10 * size * abs(run.setting(STRENGTH, 1.0)):
        normal = f"its bonus per step ({bonus:.2g}) below the reward's size ({size:.2g})"
        yield "entropy-bonus", ENTROPY, run.late(ENTROPY), normal, "hyperparameters.entropy_coefficient: auto"


def _goals(run: Evidence) -> Found:
    """Yield what shows that the return rises to the wrong goal, or that what pays is out of sight."""
    length, reached, points = run.last(LENGTH) / run.first(LENGTH), run.late(SUCCESS, 0.25), run.curves.get(SUCCESS, ())
    known = len(points) >= 4 and points[-1][0] >= 0.8 * run.step and run.is_late
    without = known and reached < 0.5 and reached < run.early(SUCCESS) + 0.15
    pays = run.late(RETURN) > run.first("Data/Reward Size") and run.last(REWARDED) >= 0.1
    rises = run.effect >= LEARNED or (run.effect > -0.3 and not run.last(TERMINATED) > 0.1)
    if without and rises and pays and length >= 0.95:
        yield "reward-loop", SUCCESS, reached, "to rise with the return"
    if without and length < 0.7 and run.effect >= 0:
        yield "reward-suicide", LENGTH, run.last(LENGTH), "to fall together with more successes"
    steps, gamma = run.early(EPISODE_LENGTH), run.setting(GAMMA)
    # Where other steps pay as much as the last one, what pays is near.
    if gamma < 0.95 and steps * (1 - gamma) >= 8 and run.first("Data/Reward at End") >= 1 and run.fails:
        cure = f"{GAMMA}: {1 - 1 / max(20.0, 2 * steps):.3g}"
        yield "gamma-low", GAMMA, gamma, f"a horizon 1 / (1 - gamma) near the {steps:.0f} steps", cure
    signals = run.settings.learned_signals.items() if run.is_late and not run.plays_others else ()
    for name, signal in sorted(signals, key=lambda one: -one[1].strength):
        found = RETURN, run.late(RETURN, 0.1), f"to rise from {run.early(RETURN):.3g}"
        if name == "gail" and run.effect <= -0.2:
            yield "gail-other-task", *found
        elif run.effect <= -0.5:
            yield "curiosity-drowns", *found, f"reward_signals.{name}.strength: {min(0.01, signal.strength / 10):g}"


def _environment(run: Evidence) -> Found:
    """Yield what the environment does to ends, actions and state, and what the network can't do."""
    told, as_any_other = run.most("Data/End by Observation"), run.most("Data/Reward at End") <= 0.5
    alike = run.least(TERMINATED) == 1 and not run.most(LENGTHS) > 0 and run.first(LENGTH) >= 3
    if alike and told < 0.7 and as_any_other and not run.plays_others:
        yield "limit-as-terminated", "Data/End by Observation", told, "near 1 where the task itself ends an episode"
    saturated = run.last("Probe/Saturated Actions")
    if saturated >= 0.7:
        yield "action-scale", "Probe/Saturated Actions", saturated, "below 0.5: neighbouring actions lead elsewhere"
    if run.last(MATTER) == 0 and not run.plays_others:  # all players held the same action
        yield "action-ignored", MATTER, 0, "above 0: from one seed, different actions lead elsewhere"
    # An effect that only few states show hides in the noise, so one window is not enough.
    if run.most(EFFECT) <= 0.02 and len(run.values(EFFECT)) >= 2 and run.fails and not run.last(MATTER) > 0:
        yield "action-ignored", EFFECT, run.most(EFFECT), "above 0.02 in some component, or in the reward"
    network = run.settings.network_settings
    width = min(network.widths, default=0)
    if network.network is None and (0 < width <= 2 or (2 < width < 8 and run.fails)):
        yield "network-small", "network_settings.hidden_units", width, "64 to 256"
    duplicates, alone = run.first("Data/Duplicate Observations"), network.memory is None and not run.plays_others
    if alone and duplicates >= 0.3 and run.fails:
        cure = "observe what is missing: several components are always equal"
        yield "obs-aliased", "Data/Duplicate Observations", duplicates, "0", cure
    for target in ("Change", "Reward"):
        share, without = (run.first(f"Data/{target} {how}") for how in ("with History", "by Observation and Action"))
        if alone and share - without > 0.4:
            cure = "observe what is missing (a velocity?), or network_settings.memory: {sequence_length: 32}"
            yield "obs-aliased", f"Data/{target} with History", share, f"that without history ({without:.2f})", cure


CONDITIONS: tuple[Callable[[Evidence], Found], ...] = _settings, _observations, _rewards, _numbers, _goals, _environment
"""The conditions, in the order of the table."""


class RunDiagnosis(HistoryWriter):
    """Collects a run's statistics, and tells each cause once per behaviour, when the rules first find it.

    Args:
        config: the run's configuration, whose rules have been checked.
        tell: called with each new finding, which is also logged.
        resumed: True if `history` gets the earlier part of the run before the first summary.

    Attributes:
        history: the run's statistics.
        findings: the newest finding of each behaviour that has one, keyed by behaviour.
    """

    def __init__(self, config: RunConfig, tell: Callable[[Finding], None], resumed: bool = False) -> None:
        self.history = History()
        super().__init__(self.history, resumed)
        self._config, self._tell = config, tell
        self._rules, _ = load_rules(config)
        self._told: set[tuple[str, str]] = set()
        self.findings: dict[str, Finding] = {}

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Add a summary, and ask the rules about its behaviour."""
        super().write(category, summaries, step)
        self.history.take_fresh()
        if "Is Training" in summaries:  # neither an evaluation nor an epoch
            self._ask(category, ended=False)

    def finish(self) -> None:
        """Ask the rules again, about the whole run, and log every behaviour's finding."""
        for behavior in self.history.categories():
            self._ask(behavior, ended=True)
        for finding in self.findings.values():
            log.warning("%s", finding, extra={"behavior": finding.behavior, "step": finding.step})

    def _ask(self, behavior: str, ended: bool) -> None:
        settings = self._config.known_settings(behavior)
        if behavior == PIPELINE or settings is None or not settings.learns:
            return
        evidence = Evidence(behavior, self.history.curves(behavior), settings, self._config, ended)
        found = diagnose(evidence, self._rules)
        if found is None:
            self.findings.pop(behavior, None)
            return
        self.findings[behavior] = found
        if (behavior, found.cause) not in self._told:
            self._told.add((behavior, found.cause))
            log.warning("%s", found, extra={"behavior": behavior, "step": found.step})
            self._tell(found)
