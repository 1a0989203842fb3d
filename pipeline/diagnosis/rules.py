"""The table of causes: each rule looks at the evidence and returns a finding, or None.

The order matters. A cause explains the symptoms that follow it (a learning rate that is too high also collapses the
entropy), so `diagnose` returns the first finding only. First come causes that need no judgement whether the run learns:
settings, then what is constant, repeated or missing in the rows. Then come numbers beyond any healthy run's, last the
causes that are spoken of only if the return does not rise, and hints.

Thresholds are relative to a random policy, to the horizon or to the spread of returns wherever possible;
docs/diagnosis.md gives each with its source. Sources: [RX] RLExplorer (arXiv 2410.04322); [Nik] Nikanjam et al.
(arXiv 2101.00135); [AJ] Andy Jones, Debugging RL; [Sch] Schulman, Nuts and bolts; [SB3] Stable-Baselines3's tips;
[Pardo] Pardo et al. (arXiv 1712.00378).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from headrace.pipeline.diagnosis.evidence import EPISODE_LENGTH, LEARNED, RETURN, Evidence, Finding
from headrace.pipeline.diagnosis.measurements import PREFIX

KL = "Policy/Approximate KL"
ENTROPY = "Policy/Entropy"
SUCCESS = "Environment/Success Rate"
LESSON = "Environment/Lesson Number/"
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
        points = run.points(statistic)
        step = next((at for at, one in reversed(points) if one == value), points[-1][0]) if points else run.step
        return Finding(run.behavior, self.severity, self.cause, statistic, float(value), step, normal, cure)


RULES: list[TableRule] = []
"""The table, in the order in which `diagnose` asks."""


def diagnose(run: Evidence, more: Iterable[Rule] = ()) -> Finding | None:
    """Return the first finding about a behaviour; users' rules are asked after the table's."""
    return next((found for rule in (*RULES, *more) if (found := rule.check(run)) is not None), None)


def rule(
    cause: str, severity: str, source: str
) -> Callable[[Callable[[Evidence], Found]], Callable[[Evidence], Found]]:
    """Add a function to the table."""

    def add(find: Callable[[Evidence], Found]) -> Callable[[Evidence], Found]:
        RULES.append(TableRule(cause, severity, source, find))
        return find

    return add


def _at_most(value: float | None, bound: float) -> bool:
    return value is not None and value <= bound


def _at_least(value: float | None, bound: float) -> bool:
    return value is not None and value >= bound


def planned_gradient_steps(run: Evidence) -> float | None:
    """Return the gradient steps that the settings allow in the whole run; None for a trainer with its own settings."""
    if run.settings is None:
        return None
    steps, get = run.settings.max_steps, run.hyperparameter
    if run.trainer in ("ppo", "poca"):
        minibatches = max(1, get("buffer_size") // get("batch_size"))
        return float(steps // get("buffer_size") * get("num_epoch") * minibatches)
    if run.trainer == "sac":
        learned = max(0, steps - get("buffer_init_steps"))
        if get("train_freq"):
            return float(learned / get("train_freq") * (get("gradient_steps") or 1))
        return float(learned / get("steps_per_update"))
    return None


# Settings.


@rule("deterministic-training", "error", "own")
def _deterministic(run: Evidence) -> Found:
    if run.settings is None or not run.settings.network_settings.deterministic or run.trainer == "bc":
        return None
    return "network_settings.deterministic", 1, "false while training", "network_settings.deterministic: false"


@rule("too-few-updates", "error", "[RX]; docs/tuning.md")
def _few_updates(run: Evidence) -> Found:
    planned = planned_gradient_steps(run)
    if planned is None or planned >= LEAST_GRADIENT_STEPS:
        return None
    assert run.settings is not None, "the plan was made from them"
    if run.settings.max_steps < 1000:  # a run that only tries whether everything works
        return None
    steps = run.settings.max_steps
    if run.trainer == "sac":
        cure = f"hyperparameters.steps_per_update: 1, buffer_init_steps: {min(1000, steps // 8)}"
    else:
        size = 2 ** max(6, min(11, (steps // 24).bit_length() - 1))
        cure = f"hyperparameters.buffer_size: {size}, batch_size: {size // 8}, num_epoch: 4; or a larger max_steps"
    return GRADIENT_STEPS, planned, f"at least {LEAST_GRADIENT_STEPS}, usually thousands", cure


@rule("strength-zero", "error", "own")
def _no_reward_used(run: Evidence) -> Found:
    if run.settings is None or run.trainer == "bc" or not run.data("Rewarded Steps", "most"):
        return None
    signals = run.settings.signals
    if "extrinsic" not in signals or run.strength or any("gail" in name.lower() for name in signals):
        return None
    return "reward_signals.extrinsic.strength", 0, "above 0", "reward_signals.extrinsic.strength: 1.0"


@rule("lesson-never-ends", "error", "docs/curricula.md")
def _lesson(run: Evidence) -> Found:
    names = [name for name in run.curves if name.startswith(LESSON)]
    lengths, config = run.early(EPISODE_LENGTH), run.config
    if not names or config is None or not lengths or run.step < 300 * lengths or not run.is_late:
        return None
    for name in names:
        lessons = getattr((config.environment_parameters or {}).get(name.removeprefix(LESSON)), "curriculum", None)
        lesson = int(run.last(name) or 0)
        criteria = getattr(lessons[lesson], "completion_criteria", None) if lessons and lesson < len(lessons) else None
        peak = run.peak(RETURN)
        if criteria is None or criteria.measure != "reward" or peak is None or run.points(name)[0][1] != lesson:
            continue
        late, before = run.late(RETURN, 0.2), run.late(RETURN, 0.5)
        spread = run.data("Return Deviation") or 1.0
        if peak[1] < criteria.threshold and late is not None and before is not None and late - before < 0.1 * spread:
            where = f"environment_parameters.{name.removeprefix(LESSON)}.curriculum"
            cure = f"{where}[{lesson}].completion_criteria.threshold: {late - abs(late) * 0.1 - 0.01:.3g}"
            return name, float(lesson), f"to rise: the threshold {criteria.threshold:g} is above every return", cure
    return None


def _never_rewarded(run: Evidence) -> bool:
    """Return True if no step was rewarded, or, without measured rows, if no episode had a return."""
    returns = [value for _, value in run.points(RETURN)]
    return not any(returns) and (run.data("Rewarded Steps", "most") == 0 or len(returns) >= 5)


@rule("exploration-small", "error", "own")
def _exploration_small(run: Evidence) -> Found:
    if run.settings is None or run.settings.network_settings.initial_log_std > -1.5:
        return None
    log_std = run.settings.network_settings.initial_log_std
    if run.settings.network_settings.gsde is not None or not (_never_rewarded(run) or run.fails):
        return None
    return "network_settings.initial_log_std", log_std, "about 0", "network_settings.initial_log_std: 0"


@rule("entropy-bonus", "error", "[AJ]; docs/tuning.md")
def _temperature_high(run: Evidence) -> Found:
    if run.trainer != "sac" or run.hyperparameter("entropy_coefficient") != "fixed":
        return None
    alpha, entropy = run.hyperparameter("init_entcoef"), run.late(ENTROPY)
    size = run.data("Reward Size", "most")
    if entropy is None or size is None or alpha * abs(entropy) <= 10 * size * abs(run.strength):
        return None
    cure = "hyperparameters.entropy_coefficient: auto"
    return ENTROPY, entropy, f"its bonus per step ({alpha * entropy:.2g}) below the reward's size ({size:.2g})", cure


# What is constant, repeated or missing in the rows.


@rule("end-at-once", "error", "openai/baselines #613")
def _ends_at_once(run: Evidence) -> Found:
    if not _at_most(run.data("Median Episode Length", "last"), 1) or not _at_most(
        run.data("Episode Length Deviation", "last"), 0.1
    ):
        return None
    if not _at_least(run.data("Terminated Episodes", "last"), 0.99) or run.data("Reward Deviation", "most") != 0:
        return None
    cure = "look for an exception that step() swallows: every episode terminates at its first step, without a reward"
    return PREFIX + "Median Episode Length", 1, "above 1", cure


@rule("reset-not", "error", "[Nik]; [RX]")
def _reset_does_not_reset(run: Evidence) -> Found:
    whole, component = run.data("Starts at Last End", "last"), run.data("Component Kept over Resets", "last")
    share, name = max((whole or 0.0, "Starts at Last End"), (component or 0.0, "Component Kept over Resets"))
    if share < 0.5 or not _at_least(run.data("Terminated Episodes", "last"), 0.5):
        return None
    if not _at_most(run.data("Median Episode Length", "least"), 2) or run.data("Constant Observations", "last") == 1:
        return None
    cure = "reset() must put the state back: episodes begin with the observation with which the last one ended"
    return PREFIX + name, share, "below 0.1", cure


@rule("obs-constant", "error", "[RX]")
def _observation_constant(run: Evidence) -> Found:
    if (
        run.data("Constant Observations", "least") != 1
        or run.plays_others
        or not _at_least(run.data("Median Episode Length", "most"), 2)
    ):  # an episode of one step may have nothing to observe
        return None
    if run.data("Reward Deviation", "most") == 0 and run.data("Episode Length Deviation", "most") == 0:
        return None
    cure = "fill the observation in: no component ever changes, in no episode"
    return PREFIX + "Constant Observations", 1, "below 1", cure


@rule("obs-frozen", "error", "[RX]; [Nik]")
def _observation_frozen(run: Evidence) -> Found:
    share = run.data("Frozen Trajectories", "least")
    if share is None or share < 0.95 or run.data("Constant Observations", "last") == 1:
        return None
    cure = "return an observation of the state after the action: within an episode it never changes"
    return PREFIX + "Frozen Trajectories", share, "below 0.5", cure


@rule("obs-stale", "error", "[RX]; [SB3]")
def _observation_stale(run: Evidence) -> Found:
    starts, others = run.data("Repeated Starts", "least"), run.data("Repeated Observations", "least")
    if starts is None or starts < 0.95 or others is None or others > 0.6:
        return None
    cure = "make the observation after the step: the first step of every episode returns the observation of reset()"
    return PREFIX + "Repeated Starts", starts, f"about as often as in other steps ({others:.2f})", cure


@rule("mask-forbids", "error", "own")
def _mask_forbids(run: Evidence) -> Found:
    share = run.data("Observations with Forbidden Choices")
    if not _never_rewarded(run) or share is None or share < 0.5:
        return None
    cure = "check the action mask: some choice is never allowed, and no reward ever comes; is it off by one?"
    return PREFIX + "Observations with Forbidden Choices", share, "reward in some steps with such a mask", cure


@rule("reward-never", "error", "[SB3]; ml-agents #4020")
def _reward_never(run: Evidence) -> Found:
    if not _never_rewarded(run) or not run.points(RETURN) or run.plays_others:
        return None
    if run.settings is not None and len(run.settings.signals) > 1 and not run.is_late:
        return None
    cure = "reward progress towards the goal, start nearer to it (docs/curricula.md), or add a curiosity signal"
    statistic = RETURN if run.data("Rewarded Steps") is None else PREFIX + "Rewarded Steps"
    return statistic, 0, "not always 0 under random actions", cure


@rule("reward-constant", "error", "stable-baselines #1167")
def _reward_constant(run: Evidence) -> Found:
    deviation = run.data("Reward Deviation", "most")
    if deviation is None or deviation > 1e-9 or run.data("Episode Length Deviation", "most") != 0 or run.plays_others:
        return None
    cure = "make the reward depend on what the agent does: it is the same in every step, and episodes are equally long"
    return PREFIX + "Reward Deviation", deviation, "above 0", cure


def _normalizes_rewards(run: Evidence) -> bool:
    return bool(run.hyperparameter("reward_normalization", False))


def _reward_scale(run: Evidence, normalized: bool, low: float, high: float) -> Found:
    """Return what is wrong with the rewards' size, where the trainer normalises them or where it does not."""
    deviation = run.data("Reward Deviation", "most")
    if not deviation or not run.strength or _normalizes_rewards(run) != normalized:
        return None
    if run.settings is None or low < deviation * abs(run.strength) < high:
        return None
    cure = f"reward_signals.extrinsic.strength: {1 / deviation:.1g}, or hyperparameters.reward_normalization: true"
    if normalized:  # a strength would be applied after the normalisation
        cure = f"none here, as reward_normalization makes up for it; elsewhere divide the rewards by {deviation:.1g}"
    return PREFIX + "Reward Deviation", deviation, "between 0.01 and 100 (times strength)", cure


@rule("reward-huge", "error", "[Sch]; [RX]; [AJ]")
def _reward_huge(run: Evidence) -> Found:
    return _reward_scale(run, False, -1, 300)


@rule("reward-tiny", "error", "[Sch]; [AJ]")
def _reward_tiny(run: Evidence) -> Found:
    return _reward_scale(run, False, 1e-3, float("inf"))


@rule("reward-late", "error", "[SB3]")
def _reward_late(run: Evidence) -> Found:
    at_start, lengths = run.data("Rewards at Start"), run.data("Median Episode Length", "least") or 0.0
    cure = "compute the reward after applying the action: it belongs to the step before"
    if at_start is not None and at_start > 0.8 and lengths >= 2 and (run.data("Reward at End") or 0.0) < 1:
        return (
            PREFIX + "Rewards at Start",
            at_start,
            "below 0.5: rewards at the start belong to the episode before",
            cure,
        )
    late, now = run.data("Reward by Previous Step", "most"), run.data("Reward by Observation and Action", "most")
    if late is None or late < 0.5 or now is None or now > 0.1:
        return None
    return PREFIX + "Reward by Previous Step", late, f"below Reward by Observation and Action ({now:.2f})", cure


def _needs_memory(run: Evidence, has_memory: bool) -> Found:
    """Return what shows that an episode's last reward depends on its first observation, and not on its last."""
    early = run.data("Last Reward by First Observation", "most")
    late = run.data("Last Reward by Last Observation", "most") or 0.0
    if early is None or early < 0.6 or early - late < 0.3 or run.settings is None:
        return None
    memory, length = run.settings.network_settings.memory, run.early(EPISODE_LENGTH) or 8.0
    if (memory is not None) != has_memory or (memory is not None and memory.sequence_length >= length):
        return None
    size = max(8, 2 ** int(2 * length - 1).bit_length())
    cure = f"network_settings.memory: {{memory_size: 64, sequence_length: {size}}}"
    return PREFIX + "Last Reward by First Observation", early, f"below that by the last observation ({late:.2f})", cure


@rule("memory-none", "error", "[SB3]")
def _memory_none(run: Evidence) -> Found:
    return _needs_memory(run, has_memory=False)


@rule("memory-short", "error", "docs/tuning.md")
def _memory_short(run: Evidence) -> Found:
    return _needs_memory(run, has_memory=True)


@rule("obs-scale", "error", "[SB3]; [Sch]; [RX]")
def _observation_scale(run: Evidence) -> Found:
    if run.settings is None or run.settings.network_settings.normalize:
        return None
    cure = "network_settings.normalize: true"
    scale, offset = run.data("Observation Scale") or 0.0, run.data("Observation Offset", "least") or 0.0
    if scale > 1e4:
        return PREFIX + "Observation Scale", scale, "about 1", cure
    if not run.fails:
        return None
    if offset > 100:
        return PREFIX + "Observation Offset", offset, "below 10", cure
    if scale > 100:
        return PREFIX + "Observation Scale", scale, "about 1 in every component", cure
    return None


# Numbers beyond any healthy run's.


@rule("lr-high", "error", "[Sch]; ml-agents #1169, #2059")
def _learning_rate_high(run: Evidence) -> Found:
    rate = run.hyperparameter("learning_rate") or 0.0
    cure = f"hyperparameters.learning_rate: {min(3e-3, max(3e-4, rate / 300)) if rate > 3e-3 else rate / 10:.2g}"
    peak = run.peak(KL)
    if peak is not None and peak[1] > 1.0 and run.trainer != "impala":
        return KL, peak[1], "below 0.2 in every summary", cure
    if run.trainer == "sac":
        largest = max((abs(value) for _, value in run.points(RETURN)), default=0.0)
        for name in ("Policy/Q1 Max", "Policy/Q1 Mean", "Policy/Extrinsic Value"):
            bound = 100 * max(largest * run.strength, 1e-6)
            worst = max(run.points(name), key=lambda point: abs(point[1]), default=None)
            if worst is not None and abs(worst[1]) > bound and largest:
                return name, worst[1], f"within the possible returns (largest so far: {largest:.3g})", cure
    if rate >= 0.03 and run.fails:
        return "hyperparameters.learning_rate", rate, "1e-4 to 3e-3", cure
    return None


@rule("entropy-bonus", "error", "[AJ]; docs/tuning.md")
def _entropy_bonus(run: Evidence) -> Found:
    beta, entropies = run.hyperparameter("beta"), [value for _, value in run.points(ENTROPY)]
    if not beta or beta < 0.1 or len(entropies) < 3 or run.effect is None or run.effect >= LEARNED:
        return None
    if max(entropies) - min(entropies) > 0.05 * max(1.0, abs(entropies[0])) and min(entropies) < entropies[0] - 0.05:
        return None
    return ENTROPY, entropies[-1], "to fall", "hyperparameters.beta: 0.005"


@rule("lr-low", "error", "docs/tuning.md")
def _learning_rate_low(run: Evidence) -> Found:
    rate = run.hyperparameter("learning_rate")
    if not rate or rate >= 2e-5 or not run.fails:
        return None
    kl, entropies = run.late(KL), [value for _, value in run.points(ENTROPY)]
    cure = "hyperparameters.learning_rate: 0.001"
    if kl is not None and kl < 5e-4:
        return KL, kl, "above 0.001", cure
    if run.trainer == "sac" and entropies:
        q = [value for _, value in run.points("Policy/Q1 Mean")] or [0.0]
        size = max(abs(run.early(RETURN) or 0.0), 1e-9)
        if max(q) - min(q) < 0.2 * size:
            return "Policy/Q1 Mean", q[-1], f"towards the discounted return (returns: {size:.3g})", cure
    return None


# Causes that are spoken of only if the return does not rise, or rises to the wrong goal.


@rule("too-many-epochs", "warning", "docs/tuning.md")
def _many_epochs(run: Evidence) -> Found:
    epochs, kl = run.hyperparameter("num_epoch") or 0, run.late(KL)
    if epochs <= 20 or kl is None or kl < 0.05 or not run.fails:
        return None
    return KL, kl, "below 0.05", "hyperparameters.num_epoch: 4"


def _success(run: Evidence) -> float | None:
    """Return the late success rate; None if it is too old or too rarely reported to be judged."""
    points = run.points(SUCCESS)
    return run.late(SUCCESS, 0.25) if len(points) >= 4 and points[-1][0] >= 0.8 * run.step else None


@rule("reward-loop", "warning", "rldoctor reward_hacking; [Sch]")
def _loop(run: Evidence) -> Found:
    success, length = _success(run), run.data("Median Episode Length", "last")
    rises = run.effect is not None and run.effect > -0.3
    if success is None or success >= 0.5 or not rises or not run.is_late or length is None:
        return None
    before = run.data("Median Episode Length")
    if before is None or length < 0.95 * before or _never_rewarded(run):
        return None
    if (run.effect or 0.0) < LEARNED and (run.data("Terminated Episodes", "last") or 0.0) > 0.1:
        return None
    if (run.late(RETURN) or 0.0) <= (run.data("Reward Size") or 0.0) or not _at_least(
        run.data("Rewarded Steps", "last"), 0.1
    ):
        return None
    cure = "pay the change of the distance, so that rewards cancel out over a loop: the return rises without success"
    return SUCCESS, success, "to rise with the return", cure


@rule("reward-suicide", "warning", "ml-agents #2059, #600")
def _suicide(run: Evidence) -> Found:
    success, before, now = (
        _success(run),
        run.data("Median Episode Length"),
        run.data("Median Episode Length", "last"),
    )
    if success is None or success >= 0.5 or before is None or now is None or now >= 0.7 * before or not run.is_late:
        return None
    if (run.effect or 0.0) < 0:
        return None
    cure = "make ending early cost more than going on: a smaller cost per step, or a penalty for failing"
    return PREFIX + "Median Episode Length", now, f"to fall together with more successes (rate: {success:.2f})", cure


@rule("gamma-low", "warning", "docs/tuning.md; [Sch]")
def _gamma_low(run: Evidence) -> Found:
    length, horizon = run.early(EPISODE_LENGTH), 1 / max(1 - run.gamma, 1e-9)
    at_end = run.data("Reward at End") or 0.0  # else what pays is near, and gamma may be small
    if not run.fails or length is None or length < 8 * horizon or run.gamma >= 0.95 or at_end < 1:
        return None
    gamma = 1 - 1 / max(20.0, 2 * length)
    cure = f"reward_signals.extrinsic.gamma: {gamma:.3g}"
    return "reward_signals.extrinsic.gamma", run.gamma, f"a horizon 1 / (1 - gamma) near the {length:.0f} steps", cure


@rule("gail-other-task", "warning", "docs/imitation.md")
def _other_task(run: Evidence) -> Found:
    if run.settings is None or run.settings.reward_signals.gail is None or not run.is_late or run.plays_others:
        return None
    if run.effect is None or run.effect > -0.2:
        return None
    cure = "record demonstrations of this very task, or lower reward_signals.gail.strength"
    return RETURN, run.late(RETURN, 0.1) or 0.0, "to rise as the policy imitates", cure


@rule("curiosity-drowns", "warning", "docs/rewards.md")
def _curiosity(run: Evidence) -> Found:
    if run.settings is None or run.effect is None or run.effect > -0.5 or not run.is_late or run.plays_others:
        return None
    strengths = {name: one.strength for name, one in run.settings.learned_signals.items() if name != "gail"}
    if not strengths:
        return None
    name = max(strengths, key=lambda one: strengths[one])
    cure = f"reward_signals.{name}.strength: {min(0.01, strengths[name] / 10):g}"
    return RETURN, run.late(RETURN, 0.1) or 0.0, f"to rise from {run.early(RETURN) or 0.0:.3g}", cure


@rule("limit-as-terminated", "warning", "[Pardo]; [SB3]")
def _limit(run: Evidence) -> Found:
    tells = run.data("End by Observation", "most")
    if (
        run.data("Terminated Episodes", "least") != 1
        or run.data("Episode Length Deviation", "most")
        or run.plays_others
    ):
        return None
    length, special = run.data("Median Episode Length") or 0.0, run.data("Reward at End", "most")
    if tells is None or tells >= 0.7 or length < 3 or special is None or special > 0.5:
        return None
    cure = "return truncated, not terminated, at a time limit (or observe the time that is left)"
    return PREFIX + "End by Observation", tells, "near 1 where the task itself ends an episode", cure


def _gain(run: Evidence) -> float | None:
    """Return the most that the first policy's action explains beyond the observation; None if unknown."""
    gains = []
    for target in ("Change", "Reward"):
        acting, plain = run.data(f"{target} by Observation and Action"), run.data(f"{target} by Observation")
        gains.append(None if acting is None else acting - max(0.0, plain or 0.0))
    return gains[0] if gains[0] is None or gains[1] is None else max(gains[0], gains[1])


@rule("action-scale", "warning", "[SB3]; stable-baselines #473")
def _action_scale(run: Evidence) -> Found:
    share = run.last("Probe/Saturated Actions")
    if share is None or share < 0.7:
        return None
    cure = "declare the action space that step() uses, best Box(-1, 1): nearly all of its range has the same effect"
    return "Probe/Saturated Actions", share, "below 0.5: neighbouring constant actions lead elsewhere", cure


@rule("action-ignored", "warning", "[Nik]")
def _action_ignored(run: Evidence) -> Found:
    cure = "use the action in step(): neither the next observation nor the reward depends on it"
    if run.last("Probe/Actions that Matter") == 0 and not run.plays_others:  # all players held the same action
        return "Probe/Actions that Matter", 0, "above 0: from one seed, different actions lead elsewhere", cure
    gain = _gain(run)
    if gain is None or gain > 0.05 or not run.fails or run.last("Probe/Actions that Matter"):
        return None
    return PREFIX + "Change by Observation and Action", gain, "a gain by the action above 0.05", cure


@rule("network-small", "warning", "[AJ]; [RX]")
def _network_small(run: Evidence) -> Found:
    if run.settings is None or run.settings.network_settings.network is not None:
        return None
    width = min(run.settings.network_settings.widths, default=0)
    if width >= 8 or not width or (width > 2 and not run.fails):
        return None
    return "network_settings.hidden_units", width, "64 to 256", "network_settings.hidden_units: 64"


@rule("obs-aliased", "warning", "[SB3]; [AJ]")
def _hidden(run: Evidence) -> Found:
    if run.plays_others or (run.settings is not None and run.settings.network_settings.memory is not None):
        return None
    duplicates = run.data("Duplicate Observations") or 0.0
    if duplicates >= 0.3:
        cure = "observe what is missing: several components are always equal, so one of them may be the wrong quantity"
        return PREFIX + "Duplicate Observations", duplicates, "0", cure
    for target in ("Change", "Reward"):
        share, without = run.data(f"{target} with History"), run.data(f"{target} without History")
        if share is not None and without is not None and share - without > 0.4:
            memory = "network_settings.memory: {memory_size: 64, sequence_length: 32}"
            cure = f"observe what is missing (a velocity?), or {memory}"
            return PREFIX + f"{target} with History", share, f"that without history ({without:.2f})", cure
    return None


# Hints: what the settings make good today, and another trainer or reward signal would stumble over.


@rule("reward-huge", "hint", "[Sch]")
def _reward_huge_but_normalized(run: Evidence) -> Found:
    return _reward_scale(run, True, -1, 1000)


@rule("reward-tiny", "hint", "[Sch]")
def _reward_tiny_but_normalized(run: Evidence) -> Found:
    return _reward_scale(run, True, 1e-4, float("inf"))
