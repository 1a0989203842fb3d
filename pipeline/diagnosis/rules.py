"""The table of causes: each rule looks at the evidence and returns a finding, or None.

The order matters. A cause explains the symptoms that follow it (a learning rate that is too high also collapses the
entropy), so `diagnose` returns the first finding only. First come causes that need no judgement whether the run learns:
settings, then what is constant, repeated or missing in the rows. Then come numbers beyond any healthy run's, last the
causes that are spoken of only if the return does not rise, and hints.

A statistic that nobody wrote is NaN. A rule therefore states what must be true, because no comparison with NaN is.

Thresholds are relative to a random policy, to the horizon or to the spread of returns wherever possible;
docs/diagnosis.md gives each with its source. Sources: [RX] RLExplorer (arXiv 2410.04322); [Nik] Nikanjam et al.
(arXiv 2101.00135); [AJ] Andy Jones, Debugging RL; [Sch] Schulman, Nuts and bolts; [SB3] Stable-Baselines3's tips;
[Pardo] Pardo et al. (arXiv 1712.00378).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headrace.pipeline.diagnosis.evidence import EPISODE_LENGTH, LEARNED, RETURN, Evidence, Finding

KL = "Policy/Approximate KL"
ENTROPY = "Policy/Entropy"
SUCCESS = "Environment/Success Rate"
LESSON = "Environment/Lesson Number/"
LENGTH = "Data/Median Episode Length"
LENGTHS = "Data/Episode Length Deviation"
TERMINATED = "Data/Terminated Episodes"
REWARDED = "Data/Rewarded Steps"
DEVIATION = "Data/Reward Deviation"
CONSTANT = "Data/Constant Observations"
GRADIENT_STEPS = "gradient steps of the whole run"
LEAST_GRADIENT_STEPS = 100


class Rule(Protocol):
    """A rule of the table, or a user's `module:Class` in `pipeline.diagnosis_rules`."""

    def check(self, run: Evidence) -> Finding | None:
        """Return the finding if the evidence shows the cause; None if it does not, or if evidence is missing."""


Found = tuple[str, float, str, str] | None
"""Statistic, its value, what would be normal, and the cure."""


@dataclass(frozen=True)
class TableRule:
    """A built-in rule: a function with the cause's name, its severity and its source."""

    cause: str
    severity: str
    source: str
    find: Callable[[Evidence], Found]

    def check(self, run: Evidence) -> Finding | None:
        """Return the finding, at the step of the statistic's newest value."""
        found = self.find(run)
        if found is None:
            return None
        statistic, value, normal, cure = found
        points = run.curves.get(statistic, ())
        step = next((at for at, _, one in reversed(points) if one == value), points[-1][0] if points else run.step)
        return Finding(run.behavior, self.severity, self.cause, statistic, float(value), step, normal, cure)


RULES: list[TableRule] = []
"""The table, in the order in which `diagnose` asks."""


def diagnose(run: Evidence, more: Iterable[Rule] = ()) -> Finding | None:
    """Return the first finding about a behaviour; users' rules are asked after the table's."""
    return next((found for rule in (*RULES, *more) if (found := rule.check(run)) is not None), None)


Find = Callable[[Evidence], Found]


def rule(cause: str, severity: str, source: str) -> Callable[[Find], Find]:
    """Add a function to the table."""

    def add(find: Find) -> Find:
        RULES.append(TableRule(cause, severity, source, find))
        return find

    return add


def planned_gradient_steps(run: Evidence) -> float:
    """Return the gradient steps that the settings allow in the whole run; NaN for a trainer with its own settings."""
    steps, get = run.settings.max_steps, run.hyperparameter
    if run.trainer in ("ppo", "poca"):
        minibatches = max(1, get("buffer_size") // get("batch_size"))
        return float(steps // get("buffer_size") * get("num_epoch") * minibatches)
    if run.trainer == "sac":
        learned = max(0, steps - get("buffer_init_steps"))
        if get("train_freq"):
            return float(learned / get("train_freq") * (get("gradient_steps") or 1))
        return float(learned / get("steps_per_update"))
    return math.nan


# Settings.


@rule("deterministic-training", "error", "own")
def _deterministic(run: Evidence) -> Found:
    if not run.settings.network_settings.deterministic or run.trainer == "bc":
        return None
    return "network_settings.deterministic", 1, "false while training", "network_settings.deterministic: false"


@rule("too-few-updates", "error", "[RX]; docs/tuning.md")
def _few_updates(run: Evidence) -> Found:
    planned, steps = planned_gradient_steps(run), run.settings.max_steps
    if not planned < LEAST_GRADIENT_STEPS or steps < 1000:  # a shorter run only tries whether everything works
        return None
    size = 2 ** max(6, min(11, (steps // 24).bit_length() - 1))
    cure = f"hyperparameters.buffer_size: {size}, batch_size: {size // 8}, num_epoch: 4; or a larger max_steps"
    if run.trainer == "sac":
        cure = f"hyperparameters.steps_per_update: 1, buffer_init_steps: {min(1000, steps // 8)}"
    return GRADIENT_STEPS, planned, f"at least {LEAST_GRADIENT_STEPS}, usually thousands", cure


@rule("strength-zero", "error", "own")
def _no_reward_used(run: Evidence) -> Found:
    signals = run.settings.signals
    if run.trainer == "bc" or "extrinsic" not in signals or any("gail" in name.lower() for name in signals):
        return None
    if run.strength == 0 and run.most(REWARDED) > 0:
        return "reward_signals.extrinsic.strength", 0, "above 0", "reward_signals.extrinsic.strength: 1.0"
    return None


@rule("lesson-never-ends", "error", "docs/curricula.md")
def _lesson(run: Evidence) -> Found:
    spread = run.first("Data/Return Deviation")
    level = run.late(RETURN, 0.2) - run.late(RETURN, 0.5) < 0.1 * (spread if spread > 0 else 1.0)
    if run.config is None or not run.is_late or not level or not run.step >= 300 * run.early(EPISODE_LENGTH):
        return None
    for statistic in (name for name in run.curves if name.startswith(LESSON)):
        name, lesson = statistic.removeprefix(LESSON), int(run.last(statistic))
        lessons = getattr((run.config.environment_parameters or {}).get(name), "curriculum", None) or ()
        criteria = getattr(lessons[lesson], "completion_criteria", None) if lesson < len(lessons) else None
        if criteria is None or criteria.measure != "reward" or run.first(statistic) != lesson:
            continue
        if run.most(RETURN) < criteria.threshold:
            reached = run.late(RETURN, 0.2)
            where = f"environment_parameters.{name}.curriculum[{lesson}].completion_criteria.threshold"
            cure = f"{where}: {reached - abs(reached) * 0.1 - 0.01:.3g}"
            return statistic, lesson, f"to rise: the threshold {criteria.threshold:g} is above every return", cure
    return None


def _never_rewarded(run: Evidence) -> bool:
    """Return True if no step was rewarded, or, without measured rows, if no episode had a return."""
    returns = run.values(RETURN)
    return not any(returns) and (run.most(REWARDED) == 0 or len(returns) >= 5)


@rule("exploration-small", "error", "own")
def _exploration_small(run: Evidence) -> Found:
    network = run.settings.network_settings
    if network.initial_log_std > -1.5 or network.gsde is not None or not (_never_rewarded(run) or run.fails):
        return None
    cure = "network_settings.initial_log_std: 0"
    return "network_settings.initial_log_std", network.initial_log_std, "about 0", cure


@rule("entropy-bonus", "error", "[AJ]; docs/tuning.md")
def _temperature_high(run: Evidence) -> Found:
    if run.trainer != "sac" or run.hyperparameter("entropy_coefficient") != "fixed":
        return None
    alpha, entropy, size = run.hyperparameter("init_entcoef"), run.late(ENTROPY), run.most("Data/Reward Size")
    if alpha * abs(entropy) > 10 * size * abs(run.strength):
        normal = f"its bonus per step ({alpha * entropy:.2g}) below the reward's size ({size:.2g})"
        return ENTROPY, entropy, normal, "hyperparameters.entropy_coefficient: auto"
    return None


# What is constant, repeated or missing in the rows.


@rule("end-at-once", "error", "openai/baselines #613")
def _ends_at_once(run: Evidence) -> Found:
    ends_at_once = run.last(LENGTH) <= 1 and run.last(LENGTHS) <= 0.1 and run.last(TERMINATED) >= 0.99
    if ends_at_once and run.most(DEVIATION) == 0:
        cure = "look for an exception that step() swallows: every episode ends at its first step, without a reward"
        return LENGTH, 1, "above 1", cure
    return None


@rule("reset-not", "error", "[Nik]; [RX]")
def _reset_does_not_reset(run: Evidence) -> Found:
    names = ("Data/Starts at Last End", "Data/Component Kept over Resets")
    name = next((name for name in names if run.last(name) >= 0.5), None)
    short = run.least(LENGTH) <= 2 and run.last(TERMINATED) >= 0.5
    if name is None or not short or run.last(CONSTANT) == 1:
        return None
    cure = "reset() must put the state back: episodes begin with the observation with which the last one ended"
    return name, run.last(name), "below 0.1", cure


@rule("obs-constant", "error", "[RX]")
def _observation_constant(run: Evidence) -> Found:
    if run.least(CONSTANT) != 1 or run.plays_others or not run.most(LENGTH) >= 2:
        return None  # an episode of one step may have nothing to observe
    if run.most(DEVIATION) == 0 and run.most(LENGTHS) == 0:
        return None
    return CONSTANT, 1, "below 1", "fill the observation in: no component ever changes, in no episode"


@rule("obs-frozen", "error", "[RX]; [Nik]")
def _observation_frozen(run: Evidence) -> Found:
    share = run.least("Data/Frozen Trajectories")
    if share >= 0.95 and run.last(CONSTANT) != 1:
        cure = "return an observation of the state after the action: within an episode it never changes"
        return "Data/Frozen Trajectories", share, "below 0.5", cure
    return None


@rule("obs-stale", "error", "[RX]; [SB3]")
def _observation_stale(run: Evidence) -> Found:
    starts, others = run.least("Data/Repeated Starts"), run.least("Data/Repeated Observations")
    if starts >= 0.95 and others <= 0.6:
        cure = "make the observation after the step: the first step of every episode returns the observation of reset()"
        return "Data/Repeated Starts", starts, f"about as often as in other steps ({others:.2f})", cure
    return None


@rule("mask-forbids", "error", "own")
def _mask_forbids(run: Evidence) -> Found:
    share = run.first("Data/Observations with Forbidden Choices")
    if share >= 0.5 and _never_rewarded(run):
        cure = "check the action mask: some choice is never allowed, and no reward ever comes; is it off by one?"
        return "Data/Observations with Forbidden Choices", share, "reward in some steps with such a mask", cure
    return None


@rule("reward-never", "error", "[SB3]; ml-agents #4020")
def _reward_never(run: Evidence) -> Found:
    seeks = len(run.settings.signals) > 1 and not run.is_late
    if not _never_rewarded(run) or not run.values(RETURN) or run.plays_others or seeks:
        return None
    cure = "reward progress towards the goal, start nearer to it (docs/curricula.md), or add a curiosity signal"
    return REWARDED if run.values(REWARDED) else RETURN, 0, "not always 0 under random actions", cure


@rule("reward-constant", "error", "stable-baselines #1167")
def _reward_constant(run: Evidence) -> Found:
    if run.plays_others or not run.most(DEVIATION) <= 1e-9 or run.most(LENGTHS) != 0:
        return None
    cure = "make the reward depend on what the agent does: it is the same in every step, and episodes are equally long"
    return DEVIATION, run.most(DEVIATION), "above 0", cure


def _reward_scale(low: float, high: float, normalized: bool, run: Evidence) -> Found:
    """Return what is wrong with the rewards' size, where the trainer normalises them or where it does not."""
    deviation, strength = run.most(DEVIATION), abs(run.strength)
    if bool(run.hyperparameter("reward_normalization", False)) != normalized or not deviation * strength > 0:
        return None
    if low < deviation * strength < high:
        return None
    cure = f"reward_signals.extrinsic.strength: {1 / deviation:.1g}, or hyperparameters.reward_normalization: true"
    if normalized:  # a strength would be applied after the normalisation
        cure = f"none here, as reward_normalization makes up for it; elsewhere divide the rewards by {deviation:.1g}"
    return DEVIATION, deviation, "between 0.01 and 100 (times strength)", cure


rule("reward-huge", "error", "[Sch]; [RX]; [AJ]")(partial(_reward_scale, -1, 300, False))
rule("reward-tiny", "error", "[Sch]; [AJ]")(partial(_reward_scale, 1e-3, math.inf, False))


@rule("reward-late", "error", "[SB3]")
def _reward_late(run: Evidence) -> Found:
    at_start, cure = run.first("Data/Rewards at Start"), "compute the reward after applying the action"
    if at_start > 0.8 and run.least(LENGTH) >= 2 and not run.first("Data/Reward at End") >= 1:
        normal = "below 0.5: rewards at the start belong to the episode before"
        return "Data/Rewards at Start", at_start, normal, cure
    late, now = run.most("Data/Reward by Previous Step"), run.most("Data/Reward by Observation and Action")
    if late >= 0.5 and now <= 0.1:
        return "Data/Reward by Previous Step", late, f"below Reward by Observation and Action ({now:.2f})", cure
    return None


def _needs_memory(has_memory: bool, run: Evidence) -> Found:
    """Return what shows that an episode's last reward depends on its first observation, and not on its last."""
    early = run.most("Data/Last Reward by First Observation")
    late = max(0.0, run.most("Data/Last Reward by Last Observation"))  # 0 if it is unknown
    memory, length = run.settings.network_settings.memory, run.early(EPISODE_LENGTH)
    length = 8.0 if math.isnan(length) else length
    if not (early >= 0.6 and early - late >= 0.3) or (memory is not None) != has_memory:
        return None
    if memory is not None and memory.sequence_length >= length:
        return None
    size = max(8, 2 ** int(2 * length - 1).bit_length())
    cure = f"network_settings.memory: {{memory_size: 64, sequence_length: {size}}}"
    return "Data/Last Reward by First Observation", early, f"below that by the last observation ({late:.2f})", cure


rule("memory-none", "error", "[SB3]")(partial(_needs_memory, False))
rule("memory-short", "error", "docs/tuning.md")(partial(_needs_memory, True))


@rule("obs-scale", "error", "[SB3]; [Sch]; [RX]")
def _observation_scale(run: Evidence) -> Found:
    scale, offset = run.first("Data/Observation Scale"), run.least("Data/Observation Offset")
    cure = "network_settings.normalize: true"
    if run.settings.network_settings.normalize:
        return None
    if scale > 1e4 or (scale > 100 and offset <= 100 and run.fails):
        return "Data/Observation Scale", scale, "about 1 in every component", cure
    if offset > 100 and run.fails:
        return "Data/Observation Offset", offset, "below 10", cure
    return None


# Numbers beyond any healthy run's.


@rule("lr-high", "error", "[Sch]; ml-agents #1169, #2059")
def _learning_rate_high(run: Evidence) -> Found:
    rate = run.hyperparameter("learning_rate") or math.nan
    rate = rate if rate > 0 else 3e-3  # another library's log may not tell it
    cure = f"hyperparameters.learning_rate: {min(3e-3, max(3e-4, rate / 300)) if rate > 3e-3 else rate / 10:.2g}"
    if run.most(KL) > 1 and run.trainer != "impala":
        return KL, run.most(KL), "below 0.2 in every summary", cure
    largest = max(map(abs, run.values(RETURN)), default=0.0)
    for name in ("Policy/Q1 Max", "Policy/Q1 Mean", "Policy/Extrinsic Value"):
        worst = max(run.values(name), key=abs, default=0.0)
        if run.trainer == "sac" and abs(worst) > 100 * max(largest * run.strength, 1e-6) and largest:
            return name, worst, f"within the possible returns (largest so far: {largest:.3g})", cure
    if rate >= 0.03 and run.fails:
        return "hyperparameters.learning_rate", rate, "1e-4 to 3e-3", cure
    return None


@rule("entropy-bonus", "error", "[AJ]; docs/tuning.md")
def _entropy_bonus(run: Evidence) -> Found:
    beta, first, least = run.hyperparameter("beta") or 0.0, run.first(ENTROPY), run.least(ENTROPY)
    if beta < 0.1 or len(run.values(ENTROPY)) < 3 or not run.effect < LEARNED:
        return None
    if run.most(ENTROPY) - least > 0.05 * max(1.0, abs(first)) and least < first - 0.05:
        return None
    return ENTROPY, run.last(ENTROPY), "to fall", "hyperparameters.beta: 0.005"


@rule("lr-low", "error", "docs/tuning.md")
def _learning_rate_low(run: Evidence) -> Found:
    rate, cure = run.hyperparameter("learning_rate") or math.nan, "hyperparameters.learning_rate: 0.001"
    if not rate < 2e-5 or not run.fails:
        return None
    if run.late(KL) < 5e-4:
        return KL, run.late(KL), "above 0.001", cure
    q, size = "Policy/Q1 Mean", max(abs(run.early(RETURN)), 1e-9)
    if run.trainer == "sac" and run.most(q) - run.least(q) < 0.2 * size:
        return q, run.last(q), f"towards the discounted return (returns: {size:.3g})", cure
    return None


# Causes that are spoken of only if the return does not rise, or rises to the wrong goal.


@rule("too-many-epochs", "warning", "docs/tuning.md")
def _many_epochs(run: Evidence) -> Found:
    epochs, kl = run.hyperparameter("num_epoch") or 0, run.late(KL)
    if epochs > 20 and kl >= 0.05 and run.fails:
        return KL, kl, "below 0.05", "hyperparameters.num_epoch: 4"
    return None


def _success(run: Evidence) -> float:
    """Return the late success rate; NaN if it is too old or too rarely reported to be judged."""
    points = run.curves.get(SUCCESS, ())
    return run.late(SUCCESS, 0.25) if len(points) >= 4 and points[-1][0] >= 0.8 * run.step else math.nan


@rule("reward-loop", "warning", "rldoctor reward_hacking; [Sch]")
def _loop(run: Evidence) -> Found:
    success, pays = _success(run), run.late(RETURN) > run.first("Data/Reward Size")
    rises = run.effect >= LEARNED or (run.effect > -0.3 and not run.last(TERMINATED) > 0.1)
    lasts = run.last(LENGTH) >= 0.95 * run.first(LENGTH) and run.last(REWARDED) >= 0.1
    if not success < 0.5 or not (rises and pays and lasts) or not run.is_late or _never_rewarded(run):
        return None
    cure = "pay the change of the distance, so that rewards cancel out over a loop: the return rises without success"
    return SUCCESS, success, "to rise with the return", cure


@rule("reward-suicide", "warning", "ml-agents #2059, #600")
def _suicide(run: Evidence) -> Found:
    success, now = _success(run), run.last(LENGTH)
    if not success < 0.5 or not now < 0.7 * run.first(LENGTH) or not run.is_late or run.effect < 0:
        return None
    cure = "make ending early cost more than going on: a smaller cost per step, or a penalty for failing"
    return LENGTH, now, f"to fall together with more successes (rate: {success:.2f})", cure


@rule("gamma-low", "warning", "docs/tuning.md; [Sch]")
def _gamma_low(run: Evidence) -> Found:
    length, gamma = run.early(EPISODE_LENGTH), run.gamma
    far = gamma < 0.95 and length * (1 - gamma) >= 8 and run.first("Data/Reward at End") >= 1
    if not far or not run.fails:  # where other steps pay as much, what pays is near
        return None
    cure = f"reward_signals.extrinsic.gamma: {1 - 1 / max(20.0, 2 * length):.3g}"
    return "reward_signals.extrinsic.gamma", gamma, f"a horizon 1 / (1 - gamma) near the {length:.0f} steps", cure


def _drowns(imitates: bool, run: Evidence) -> Found:
    """Return what shows that the return falls, as a learned reward signal asks for something else."""
    learned = run.settings.learned_signals
    strengths = {name: one.strength for name, one in learned.items() if (name == "gail") == imitates}
    if not strengths or not run.effect <= (-0.2 if imitates else -0.5) or not run.is_late or run.plays_others:
        return None
    name = max(strengths, key=lambda one: strengths[one])
    cure = f"reward_signals.{name}.strength: {min(0.01, strengths[name] / 10):g}"
    if imitates:
        cure = "record demonstrations of this very task, or lower reward_signals.gail.strength"
    return RETURN, run.late(RETURN, 0.1), f"to rise from {run.early(RETURN):.3g}", cure


rule("gail-other-task", "warning", "docs/imitation.md")(partial(_drowns, True))
rule("curiosity-drowns", "warning", "docs/rewards.md")(partial(_drowns, False))


@rule("limit-as-terminated", "warning", "[Pardo]; [SB3]")
def _limit(run: Evidence) -> Found:
    tells = run.most("Data/End by Observation")
    alike = run.least(TERMINATED) == 1 and not run.most(LENGTHS) > 0 and run.first(LENGTH) >= 3
    if run.plays_others or not alike or not tells < 0.7 or not run.most("Data/Reward at End") <= 0.5:
        return None
    cure = "return truncated, not terminated, at a time limit (or observe the time that is left)"
    return "Data/End by Observation", tells, "near 1 where the task itself ends an episode", cure


@rule("action-scale", "warning", "[SB3]; stable-baselines #473")
def _action_scale(run: Evidence) -> Found:
    share = run.last("Probe/Saturated Actions")
    if share >= 0.7:
        cure = "declare the action space that step() uses, best Box(-1, 1): most of its range has the same effect"
        return "Probe/Saturated Actions", share, "below 0.5: neighbouring constant actions lead elsewhere", cure
    return None


def _gain(run: Evidence) -> float:
    """Return the most that the first policy's action explains beyond the observation; NaN if unknown."""

    def of(what: str) -> float:
        return run.first(f"Data/{what} by Observation and Action") - max(0.0, run.first(f"Data/{what} by Observation"))

    return max(of("Change"), of("Reward"))  # the former if the latter is unknown


@rule("action-ignored", "warning", "[Nik]")
def _action_ignored(run: Evidence) -> Found:
    cure = "use the action in step(): neither the next observation nor the reward depends on it"
    matters, gain = run.last("Probe/Actions that Matter"), _gain(run)
    if matters == 0 and not run.plays_others:  # all players held the same action
        return "Probe/Actions that Matter", 0, "above 0: from one seed, different actions lead elsewhere", cure
    if gain <= 0.05 and run.fails and not matters > 0:
        return "Data/Change by Observation and Action", gain, "a gain by the action above 0.05", cure
    return None


@rule("network-small", "warning", "[AJ]; [RX]")
def _network_small(run: Evidence) -> Found:
    network = run.settings.network_settings
    width = min(network.widths, default=0)
    if network.network is not None or not 0 < width < 8 or (width > 2 and not run.fails):
        return None
    return "network_settings.hidden_units", width, "64 to 256", "network_settings.hidden_units: 64"


@rule("obs-aliased", "warning", "[SB3]; [AJ]")
def _hidden(run: Evidence) -> Found:
    if run.plays_others or run.settings.network_settings.memory is not None:
        return None
    duplicates = run.first("Data/Duplicate Observations")
    if duplicates >= 0.3:
        cure = "observe what is missing: several components are always equal, so one of them may be the wrong quantity"
        return "Data/Duplicate Observations", duplicates, "0", cure
    for target in ("Change", "Reward"):
        share, without = run.first(f"Data/{target} with History"), run.first(f"Data/{target} without History")
        if share - without > 0.4:
            memory = "network_settings.memory: {memory_size: 64, sequence_length: 32}"
            cure = f"observe what is missing (a velocity?), or {memory}"
            return f"Data/{target} with History", share, f"that without history ({without:.2f})", cure
    return None


# Hints: what the settings make good today, and another trainer or reward signal would stumble over.

rule("reward-huge", "hint", "[Sch]")(partial(_reward_scale, -1, 1000, True))
rule("reward-tiny", "hint", "[Sch]")(partial(_reward_scale, 1e-4, math.inf, True))
