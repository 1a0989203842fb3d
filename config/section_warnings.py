"""Warnings about settings that are probably mistakes, but are accepted because ML-Agents files contain them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.config.behaviors import BehaviorSettings
from headrace.config.environment_kinds import UNITY
from headrace.config.errors import Finding, suggest
from headrace.config.fields import changed
from headrace.config.file_names import why_not_on_windows
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.listen import reaches_others
from headrace.config.paths import is_of_windows
from headrace.config.sections import Sections
from headrace.config.trainers import declared_kind

_PROGRAMS_ALONE = (
    *("env_path", "env_args", "base_port", "num_areas", "on_close", "side_channels", "listen", "max_message_mib"),
)
_FOR_LEARNING = (
    "trainer_type",
    "hyperparameters",
    "network_settings",
    "reward_signals",
    "behavioral_cloning",
    "checkpoint_interval",
    "keep_checkpoints",
    "even_checkpoints",
    "init_path",
)
_EXECUTABLES_ALONE = {
    "env_settings": ("env_args", "base_port"),
    "engine_settings": ("no_graphics", "no_graphics_monitor"),
}


def section_warnings(config: Sections) -> list[Finding]:
    """Find valid settings that deserve a warning, in all sections and behaviours."""
    found = [*_about_checkpoints(config), *_about_unity(config), *_about_roles(config), *_about_curricula(config)]
    found += [*_about_demonstrations_alone(config), *_about_other_systems(config)]
    for path, settings in config.blocks():
        if not settings.learns:
            found += [Finding((*path, *each.path), each.message) for each in _about_unlearned(config, settings)]
            continue
        below = (*_behavior_warnings(settings), *_about_start(config, settings))
        found += [Finding((*path, *each.path), each.message) for each in below]
        if settings.network_settings.deterministic and not _plays_only(config, settings):
            message = (
                "the policy does not explore while it learns, which rarely works; this setting is meant for --inference"
            )
            found.append(Finding((*path, "network_settings", "deterministic"), message))
    return found


def _about_other_systems(config: Sections) -> Iterator[Finding]:
    """Report folder names that this system accepts and others do not."""
    for key in ("run_id", "initialize_from"):
        reason = why_not_on_windows(getattr(config.checkpoint_settings, key) or "")
        if reason:
            yield Finding(("checkpoint_settings", key), f"this run can't be moved to Windows: {reason}")
    for section, path in (("checkpoint_settings", "results_dir"), ("env_settings", "env_path")):
        given = getattr(getattr(config, section), path) or ""
        if sys.platform != "win32" and is_of_windows(given):
            yield Finding((section, path), f"'{given}' is a Windows path, which does not exist on this system")
    by_lower: dict[str, str] = {}
    for name in config.behaviors:
        other = by_lower.setdefault(name.lower(), name)
        if other != name:
            message = (
                f"differs from {other} only in upper and lower case, so Windows and macOS would use the same folder "
                "for both"
            )
            yield Finding(("behaviors", name), message)


def _about_demonstrations_alone(config: Sections) -> Iterator[Finding]:
    """Report behaviours that learn without acting while others act."""
    if config.replay is not None or config.checkpoint_settings.inference:
        return
    alone = [name for name, each in config.behaviors.items() if each.learns and each.demonstrations is not None]
    others = [name for name in config.behaviors if name not in alone]
    for name in alone if others else ():
        message = (
            f"learns only from demonstrations, and {others[0]} does not, so one run can't train both. This run leaves "
            f"{name} out, and fails if its environment has agents of that behaviour. Train {name} in a separate run, "
            "or let it imitate a 'teacher' of this run"
        )
        yield Finding(("behaviors", name), message)


def _about_unlearned(config: Sections, settings: BehaviorSettings) -> Iterator[Finding]:
    """Report keys that only a trainer would use, except inherited ones."""
    inherited = config.default_settings
    for key in changed(settings):
        if key in _FOR_LEARNING and (inherited is None or getattr(settings, key) != getattr(inherited, key)):
            yield Finding((key,), "has no effect, because its 'brain' does not learn")


def _plays_only(config: Sections, settings: BehaviorSettings) -> bool:
    """Return True if no trainer learns from the agents' actions."""
    imitates = declared_kind(settings.trainer_type).imitates
    return config.checkpoint_settings.inference or config.replay is not None or imitates


def _about_start(config: Sections, settings: BehaviorSettings) -> Iterator[Finding]:
    if settings.init_path is None:
        return
    source = config.checkpoint_settings.initialize_from
    if config.checkpoint_settings.resume:
        yield Finding(("init_path",), "has no effect, because 'resume: true' takes precedence")
    elif source is not None and any(sign in settings.init_path for sign in "/\\"):
        message = f"takes precedence over initialize_from, so this behaviour loads nothing from run '{source}'"
        yield Finding(("init_path",), message)


def _about_checkpoints(config: Sections) -> Iterator[Finding]:
    settings = config.checkpoint_settings
    if settings.load_model:
        yield Finding(("checkpoint_settings", "load_model"), "is deprecated; it is treated as 'resume: true'")
    if settings.train_model:
        yield Finding(("checkpoint_settings", "train_model"), "is deprecated and has no effect")
    if settings.resume and settings.initialize_from is not None:
        message = "has no effect, because 'resume: true' takes precedence"
        yield Finding(("checkpoint_settings", "initialize_from"), message)


def _about_unity(config: Sections) -> Iterator[Finding]:
    if config.environment is None or config.environment.kind == UNITY:
        if reaches_others(config.env_settings.listen) and config.replay is None:
            message = (
                "lets any machine that can reach this one connect in place of Unity, see the actions and end the run; "
                "'localhost' is enough for a Unity process on this machine"
            )
            yield Finding(("env_settings", "listen"), message)
        if config.env_settings.env_path is None and config.replay is None:
            yield from _about_editor(config)
        return
    kind = config.environment_kind
    if kind.apart and config.env_settings.env_path is None and config.replay is None:
        yield from _about_editor(config)
    for name in changed(config.env_settings):
        if name in _PROGRAMS_ALONE and name not in kind.env_settings:
            yield Finding(("env_settings", name), "has no effect, because 'environment' defines what to run")
    ignored = [name for name in changed(config.engine_settings) if name not in kind.engine_settings]
    if ignored and not kind.engine_settings:
        yield Finding(("engine_settings",), "has no effect, because only Unity uses it")
    elif config.environment.kind != UNITY:
        for name in ignored:
            yield Finding(
                ("engine_settings", name), f"has no effect on environments of kind '{config.environment.kind}'"
            )


def _about_editor(config: Sections) -> Iterator[Finding]:
    kind = config.environment_kind
    for section, names in _EXECUTABLES_ALONE.items():
        settings, usual = getattr(config, section), kind.defaults.get(section, {})
        for name in changed(settings):
            if name not in names or getattr(settings, name) == usual.get(name):
                continue
            if name != "base_port":
                port = ""
            elif kind.editor_port is None:  # the editor connects to the first port
                continue
            else:
                port = f", which always uses port {kind.editor_port}"
            message = f"has no effect, because without env_path the run waits for {kind.editor}{port}"
            yield Finding((section, name), message)


def _about_roles(config: Sections) -> Iterator[Finding]:
    roles = config.environment.behaviors if config.environment is not None else {}
    for pattern, role in roles.items():
        hint = suggest(role.behavior or "", config.behaviors)
        if hint and role.behavior not in (*config.behaviors, *config.met_behaviors):
            message = f"'{role.behavior}' is not listed under behaviors, so it learns with default_settings{hint}"
            yield Finding(("environment", "behaviors", pattern), message)


def _about_curricula(config: Sections) -> Iterator[Finding]:
    if config.environment_parameters and config.replay is not None:
        message = "has no effect, because 'replay' replaces the environment"
        yield Finding(("environment_parameters",), message)
    for path, criteria, last in config.completion_criteria():
        if last:
            yield Finding(path, "has no effect on the last lesson")
        elif criteria.measure == "reward" and not criteria.min_lesson_length:
            message = "is 0, so the lesson can end after a single lucky episode; 100 is usual"
            yield Finding((*path, "min_lesson_length"), message)
        elif criteria.measure == "Elo" and _never_rated_up_to(config, criteria.behavior, criteria.threshold):
            message = (
                f"'Elo' stays constant, because {criteria.behavior} plays only against its newest policy "
                "(play_against_latest_model_ratio: 1, or learning_teams: all), and games against itself are not "
                "rated; so the lesson never ends"
            )
            yield Finding((*path, "measure"), message)


def _never_rated_up_to(config: Sections, behavior: str, threshold: float) -> bool:
    """Return True if a behaviour's rating can never exceed a threshold.

    The rating is constant if the behaviour plays only against its own newest policy.
    """
    if config.default_settings is not None and config.default_settings.self_play is not None:
        return False  # other behaviours may appear later
    all_settings = {n: s.self_play for n, s in config.behaviors.items() if s.self_play is not None}
    if len(all_settings) != 1 or behavior not in all_settings:
        return False
    settings = all_settings[behavior]
    newest = settings.learning_teams == "all" or settings.play_against_latest_model_ratio >= 1
    against_itself = newest and not settings.brains
    return against_itself and settings.initial_elo <= threshold


# Warnings about one behaviour; the findings' paths start at its block.

_SHAPE = ("num_layers", "vis_encode_type", "goal_conditioning_type")
"""Keys that a custom network receives and may ignore; all other keys always have an effect."""

FEW_STEPS = 8
"""Highest `time_horizon` without a warning for an off-policy trainer, which learns from short trajectories."""


def _behavior_warnings(settings: BehaviorSettings) -> Iterator[Finding]:
    yield from _about_relics(settings)
    yield from _about_self_play(settings)
    yield from _about_signals(settings)
    yield from _about_network(settings)
    yield from _about_sequences(settings)
    yield from _about_trainer(settings)


def _about(keys: str, message: str) -> Finding:
    """Return a finding about a dotted key, which must not contain user-chosen names, because these may contain dots."""
    return Finding(tuple(keys.split(".")), message)


def _about_relics(settings: BehaviorSettings) -> Iterator[Finding]:
    if settings.threaded:
        yield _about("threaded", "has no effect here, because the learner always runs separately")
    if settings.framework is not None:
        yield _about("framework", "has no effect; training always uses torch")


def _about_self_play(settings: BehaviorSettings) -> Iterator[Finding]:
    if settings.self_play is None:
        return
    if settings.self_play.learning_teams == "turns" and settings.self_play.team_change > settings.max_steps:
        yield _about(
            "self_play.team_change",
            f"{settings.self_play.team_change} steps exceed max_steps ({settings.max_steps}), so one team learns for "
            "the entire run",
        )
    if declared_kind(settings.trainer_type).off_policy:
        yield _about(
            "self_play",
            f"opponents change, but {settings.trainer_type} keeps learning from steps against earlier opponents, which "
            "may mislead it; ppo suits self-play better",
        )


def _about_signals(settings: BehaviorSettings) -> Iterator[Finding]:
    if "reward_signals" in declared_kind(settings.trainer_type).without_effect:
        return
    extrinsic = settings.reward_signals.extrinsic
    if extrinsic is not None and extrinsic.network_settings is not None:
        yield _about("reward_signals.extrinsic.network_settings", "has no effect; this reward has no network")
    for name, signal in settings.learned_signals.items():
        if signal.encoding_size is not None:
            taken = signal.encoding_size == signal.network_settings.hidden_units
            instead = "it is read as network_settings.hidden_units" if taken else "network_settings take precedence"
            yield _about(f"reward_signals.{name}.encoding_size", f"is deprecated; {instead}")
        if signal.network_settings.memory is not None:
            yield _about(
                f"reward_signals.{name}.network_settings.memory",
                "has no effect; the signal's network sees single steps and has no memory",
            )
        if signal.network_settings.gsde is not None:
            yield _about(
                f"reward_signals.{name}.network_settings.gsde", "has no effect; the signal's network chooses no actions"
            )


def _about_network(settings: BehaviorSettings) -> Iterator[Finding]:
    network, hyperparameters = settings.network_settings, settings.hyperparameters
    if declared_kind(settings.trainer_type).off_policy:
        for key in ("initial_weights", "initial_log_std"):
            if key in changed(network) and (key == "initial_weights" or network.gsde is None):
                yield _about(f"network_settings.{key}", f"has no effect with {settings.trainer_type}")
    elif network.gsde is not None and "clip_mean" in changed(network.gsde) and not network.gsde.squash_output:
        yield _about("network_settings.gsde.clip_mean", "has no effect without squash_output")
    if network.critic_hidden_units is not None and getattr(hyperparameters, "shared_critic", False):
        message = "has no effect, because the critic shares the actor's body (hyperparameters.shared_critic)"
        yield _about("network_settings.critic_hidden_units", message)
    if network.network is None:
        return
    for key in changed(network):
        if key in _SHAPE and getattr(network, key) is not None:
            yield _about(f"network_settings.{key}", f"is only passed to {network.network}, which may ignore it")


def _about_sequences(settings: BehaviorSettings) -> Iterator[Finding]:
    memory = settings.network_settings.memory
    if memory is None or not isinstance(settings.hyperparameters, Hyperparameters):
        return
    path, length = "network_settings.memory.sequence_length", memory.sequence_length
    unroll = settings.hyperparameters.longest_piece
    if length > settings.time_horizon and "time_horizon" not in declared_kind(settings.trainer_type).without_effect:
        yield _about(
            path,
            f"{length} is longer than time_horizon ({settings.time_horizon}), at which trajectories are cut, so "
            f"sequences have at most {settings.time_horizon} steps, and the rest of each is padding",
        )
    sizes: dict[str, int] = {}
    if unroll is not None:
        if "sequence_length" in changed(memory) and length != unroll and settings.behavioral_cloning is None:
            yield _about(path, f"has no effect: sequences are unrolls (hyperparameters.unroll_length: {unroll})")
    elif (batch_size := getattr(settings.hyperparameters, "batch_size", None)) is not None:
        sizes["hyperparameters.batch_size"] = batch_size
    if settings.behavioral_cloning is not None and settings.behavioral_cloning.batch_size is not None:
        sizes["behavioral_cloning.batch_size"] = settings.behavioral_cloning.batch_size
    for key, size in sizes.items():
        if size % length:
            count = max(1, size // length)
            whole = "1 whole sequence" if count == 1 else f"{count} whole sequences"
            yield _about(
                path, f"{length} does not divide {key} ({size}): a batch contains {whole} ({count * length} steps)"
            )


def _about_trainer(settings: BehaviorSettings) -> Iterator[Finding]:
    kind = declared_kind(settings.trainer_type)
    for key in changed(settings):
        if key in kind.without_effect:
            yield _about(key, f"has no effect, because {kind.without_effect[key]}")
    if isinstance(settings.hyperparameters, Hyperparameters):
        yield from settings.hyperparameters.warnings(settings)
        size = settings.hyperparameters.rows_per_update or 0
        if size > settings.max_steps:
            sizes = ("train_freq", "buffer_size", "batch_size")
            key = next(name for name in sizes if hasattr(settings.hyperparameters, name))
            yield _about(
                f"hyperparameters.{key}",
                f"{size} steps exceed max_steps ({settings.max_steps}): training ends before the first update, "
                "and nothing is learned",
            )
    if kind.off_policy:
        yield from _about_horizon(settings)


def _about_horizon(settings: BehaviorSettings) -> Iterator[Finding]:
    memory = settings.network_settings.memory
    rows = settings.hyperparameters.rows_per_update if isinstance(settings.hyperparameters, Hyperparameters) else None
    longest = max(FEW_STEPS if rows is None else rows, memory.sequence_length if memory else 0)
    if "time_horizon" in changed(settings) and settings.time_horizon > longest:
        length, unit = ("sequence_length", "sequences") if memory else ("a few", "single steps")
        yield _about(
            "time_horizon",
            f"has no effect, because {settings.trainer_type} learns from {unit}; it receives trajectories in pieces of "
            f"{length} steps",
        )
