"""Checks across several sections of the YAML, and warnings about settings that are probably mistakes.

Checks within a single section, or within a single league, are in that section's model. Settings that merely have no
effect give no warning.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from headrace.config.behaviors import BehaviorSettings
from headrace.config.brains import PLAYER, BrainSettings
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, UNITY, load_entry
from headrace.config.errors import Finding, KeyPath, dotted, suggest
from headrace.config.host_kinds import NODE, HostResources
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.league import LeagueSettings
from headrace.config.league_placement import placement_key, placement_of
from headrace.config.listen import LAST_PORT, reaches_others
from headrace.config.paths import is_of_windows
from headrace.config.sections import Sections
from headrace.config.trainers import declared_kind

_BEHAVIORS: KeyPath = ("behaviors",)
_DEFAULT: KeyPath = ("default_settings",)
_MOST_PROGRAMS = 256
"""Maximum number of programs per actor, which is limited by the range of agent ids."""


def check_run(config: Sections) -> Iterator[Finding]:
    """Find mistakes in a run's environments that do not matter if the file is only converted."""
    if config.environment is not None and config.environment.behavior is not None:
        yield from _listed(config, ("environment", "behavior"), config.environment.behavior)
    if config.environment_kind.check is not None:
        yield from load_entry(config.environment_kind.check)(config)


def check_sections(config: Sections) -> list[Finding]:
    """Find all other conflicts between sections; if there are none, find the settings that deserve a warning."""
    mistakes = [
        *_about_behaviors(config),
        *_about_teachers(config),
        *_about_roles(config),
        *_about_names(config),
        *_about_parameters_of_unity(config),
        *_about_lessons(config),
        *_about_nodes(config),
        *_about_ghosts(config),
        *_about_learning_teams(config),
        *_about_replay(config),
        *_about_hindsight(config),
        *_about_ratings_that_stop(config),
        *_about_persons(config),
        *about_leagues(config),
    ]
    if mistakes:
        return mistakes
    warnings = [
        *_about_checkpoints(config),
        *_about_listening(config),
        *_about_misspelt_roles(config),
        *_about_curricula(config),
        *_about_demonstrations_alone(config),
        *_about_recorded_brains(config),
        *_about_other_systems(config),
    ]
    for path, settings in config.blocks():
        if settings.learns:
            warnings += [finding.below(path) for finding in _about_learning(config, settings)]
    return [replace(finding, warns=True) for finding in warnings]


def _blocks(config: Sections) -> list[tuple[KeyPath, BehaviorSettings]]:
    """Return all behaviour blocks with their paths, including `default_settings`."""
    blocks: list[tuple[KeyPath, BehaviorSettings]] = [
        ((*_BEHAVIORS, name), settings) for name, settings in config.behaviors.items()
    ]
    return blocks if config.default_settings is None else [*blocks, (_DEFAULT, config.default_settings)]


def _about_nodes(config: Sections) -> Iterator[Finding]:
    """Report hosts that request a cluster node in a run that joins no cluster."""
    hosts = config.pipeline.hosts
    requests: list[tuple[KeyPath, HostResources | None]] = [
        (("pipeline", "hosts", part, "resources"), getattr(hosts, part).resources) for part in type(hosts).model_fields
    ]
    for name, settings in config.behaviors.items():
        if settings.league is not None and settings.league.learner:
            key, placement = placement_key(config, name), placement_of(config, name)
            requests += [((*key, "actors"), placement.actors), ((*key, "learners"), placement.learners)]
    for path, resources in requests if config.pipeline.ray.address is None else ():
        for resource in () if resources is None else resources.custom:
            if resource.startswith(NODE):
                message = (
                    "is a node of a cluster, but without pipeline.ray.address the run starts its own Ray, only on this "
                    "machine; set that address, or leave this out"
                )
                yield Finding((*path, "custom", resource), message, (("pipeline", "ray", "address"),))


def _about_replay(config: Sections) -> Iterator[Finding]:
    """Report replay buffers that can't be in separate hosts."""
    path: KeyPath = ("pipeline", "hosts", "replay", "kind")
    if config.pipeline.hosts.replay.kind is None:
        return
    learned = [(key, settings) for key, settings in _blocks(config) if settings.trainer_type == "sac"]
    if not learned:
        yield Finding(path, "has no effect: only trainer_type 'sac' has a replay buffer; leave it out", (path,))
    for key, settings in learned:
        if settings.network_settings.memory is not None:
            message = (
                "a network with a memory learns from sequences, which can only be drawn inside the learner; leave out "
                "pipeline.hosts.replay or the memory"
            )
            yield Finding((*key, "network_settings", "memory"), message, (path,))


def with_hindsight(config: Sections) -> list[KeyPath]:
    """Return the paths of all `hindsight` keys in behaviours."""
    learning = ((path, block) for path, block in _blocks(config) if block.learns)
    return [
        (*path, "hyperparameters", "hindsight")
        for path, block in learning
        if getattr(block.hyperparameters, "hindsight", None) is not None
    ]


def _about_hindsight(config: Sections) -> Iterator[Finding]:
    """Report runs in which hindsight can't recompute rewards, or would get them wrong."""
    environment, kind = config.environment, config.environment_kind
    for path in with_hindsight(config):
        if environment is None and config.replay is not None:
            message = (
                "needs the compute_reward of the recorded environment; add the 'environment' section of the recorded "
                "run"
            )
            yield Finding(path, message, (("environment",),))
        elif kind.goal_rewards is None:
            fitting = " or ".join(name for name, kind in ENVIRONMENT_KINDS.items() if kind.goal_rewards is not None)
            name = UNITY if environment is None else environment.kind
            message = (
                f"needs an environment with compute_reward, such as a goal environment of kind {fitting}; environments "
                f"of kind {name} have none; leave hindsight out"
            )
            yield Finding(path, message, (("environment", "kind"),))
        if environment is not None and environment.action_repeat is not None:
            message = (
                "adds up the rewards of several steps, while hindsight recomputes only the reward of the last step; "
                "leave one of the two out"
            )
            yield Finding(("environment", "action_repeat"), message, (path,))
        if config.pipeline.hosts.replay.kind is not None:
            message = (
                "relabels steps by their episodes, which only the learner knows; leave it out, or leave out "
                "pipeline.hosts.replay"
            )
            yield Finding(path, message, (("pipeline", "hosts", "replay", "kind"),))


def _about_ratings_that_stop(config: Sections) -> Iterator[Finding]:
    """Report `stop_when.elo` in runs where it can't be used, because ratings reach trainers at unpredictable steps."""
    pipeline = config.pipeline
    why: dict[KeyPath, str] = {}
    if pipeline.deterministic:
        why[("pipeline", "deterministic")] = "a deterministic run can't use it to stop"
    if pipeline.hosts.learners.replicas > 1:
        why[("pipeline", "hosts", "learners", "replicas")] = "replicas of a trainer can't use it to stop"
    for name, settings in config.behaviors.items():
        if settings.stop_when is not None and settings.stop_when.elo is not None:
            for key, words in why.items():
                message = f"is computed in the main process, at no fixed step, so {words}; use mean_reward or plateau"
                yield Finding((*_BEHAVIORS, name, "stop_when", "elo"), message, (key,))


def _about_behaviors(config: Sections) -> Iterator[Finding]:
    if not config.behaviors and config.default_settings is None:
        message = "is empty, so the run has nothing to train; add a behaviour, or set default_settings"
        yield Finding(_BEHAVIORS, message, (_BEHAVIORS, _DEFAULT))
    for name in config.behaviors:
        if name in ("", ".", "..") or any(sign in "?/\\" or "\ud800" <= sign <= "\udfff" for sign in name):
            message = (
                "is not a valid behaviour name: it is also the name of a folder, so it can't be empty or contain '?', "
                "'/', '\\' or half of a surrogate pair"
            )
            yield Finding((*_BEHAVIORS, name), message)


def _about_teachers(config: Sections) -> Iterator[Finding]:
    for path, settings in _blocks(config):
        name = path[1] if path != _DEFAULT else None
        teacher, where = settings.teacher, (*path, "hyperparameters", "teacher")
        if teacher is None:
            continue
        if teacher == name:
            others = ", ".join(other for other in config.behaviors if other != name) or "none so far"
            message = f"'{teacher}' is this behaviour itself; expected another behaviour of this run ({others})"
            yield Finding(where, message, (where,))
        elif (other := config.behaviors.get(teacher)) is not None and not other.learns and not other.broadcast:
            message = (
                f"'{teacher}' has a 'brain' that does not learn, whose steps are discarded; set broadcast: true for it"
            )
            yield Finding(where, message, ((*_BEHAVIORS, teacher, "brain"), (*_BEHAVIORS, teacher, "broadcast")))
        else:
            fix = (
                "the teacher must be a behaviour of this run; to imitate a person who plays in Unity, record a .demo "
                "file and set it as demo_path"
            )
            yield from _listed(config, where, teacher, fix)


def check_behavior(config: Sections) -> Iterator[Finding]:
    """Report an environment that has only one kind of agent but does not name the agents' behaviour."""
    if config.environment is not None and config.environment.behavior is None:
        involved = (("environment", "behavior"), _BEHAVIORS, _DEFAULT)
        yield Finding(("environment",), without_behavior(config), involved)


def without_behavior(config: Sections, likely: str = "Agent") -> str:
    """Return the message for agents without a behaviour; suggest `likely` if that behaviour is listed."""
    listed = config.met_behaviors
    return (
        f"needs 'behavior', the behaviour name of its agents, because {len(listed)} behaviours are listed; for example "
        f"environment.behavior: {likely if likely in listed else next(iter(listed), likely)}"
    )


def check_roles(config: Sections) -> Iterator[Finding]:
    """Report agents that have no behaviour in a multi-agent environment."""
    environment = config.environment
    if environment is None or environment.behavior is not None:
        return
    if any(role.behavior is None for role in environment.behaviors.values()) or not environment.behaviors:
        of_players = environment.kind == "open_spiel"
        such = "player_0: First, player_*: Others" if of_players else "adversary_*: Predator, agent_*: Prey"
        message = (
            f"needs 'behaviors', the roles of its agents, because {len(config.met_behaviors)} behaviours are listed; "
            f"for example {{{such}}}"
        )
        involved = (("environment", "behaviors"), _BEHAVIORS, _DEFAULT)
        yield Finding(("environment",), message, involved)


def lacking_programs(config: Sections) -> Iterator[Finding]:
    """Report settings that need a program if `env_settings.env_path` is missing.

    A command-line option may still set it.
    """
    if not config.environment_kind.apart or config.env_settings.env_path is not None or config.replay is not None:
        return
    if _evaluated(config):
        message = (
            f"needs separate environments, but {config.environment_kind.editor} is a single environment, which "
            "training uses; build the game and set env_path (--env), or leave evaluation out"
        )
        yield Finding(("evaluation",), message)
    add = "env_path (--env); without it, the run waits for"
    if config.environment_kind is ENVIRONMENT_KINDS[UNITY]:
        add = "'environment', or env_path (--env); without them, the run waits for"
    only = f"need a program to start: add {add} {config.environment_kind.editor}, which is a single environment"
    count, replicas = _number_of_programs(config), config.pipeline.hosts.actors.replicas
    if count > 1:
        yield Finding(("env_settings", "num_envs"), f"{count} environments {only}")
    elif replicas > 1:
        yield Finding(
            ("pipeline", "hosts", "actors", "replicas"), f"{replicas} actors with separate environments {only}"
        )


def _number_of_programs(config: Sections) -> int:
    """Return the number of programs per actor."""
    of_unity = config.environment_kind is ENVIRONMENT_KINDS[UNITY]
    return config.env_settings.num_envs if of_unity or config.environment is None else config.environment.num_envs


def check_programs(config: Sections) -> Iterator[Finding]:
    """Report settings that conflict with an environment that is a program or an engine's editor."""
    if config.replay is not None:
        return
    settings, count = config.env_settings, _number_of_programs(config)
    programs = count * (config.pipeline.hosts.actors.replicas + _evaluated(config))
    if settings.env_path is not None and settings.base_port and settings.base_port + programs - 1 > LAST_PORT:
        message = (
            f"{settings.base_port} leaves too few ports for {programs} environments, because each environment uses the "
            "next port; choose a lower port, or 0 for any free ports"
        )
        yield Finding(("env_settings", "base_port"), message, (("env_settings", "num_envs"),))
    if count > _MOST_PROGRAMS:
        message = f"{count} exceeds the limit of {_MOST_PROGRAMS} environments in one actor; raise pipeline.hosts"
        yield Finding(("env_settings", "num_envs"), f"{message}.actors.replicas instead", ())


def _evaluated(config: Sections) -> bool:
    return config.evaluation is not None and not config.checkpoint_settings.inference


def _about_roles(config: Sections) -> Iterator[Finding]:
    roles = config.environment.behaviors if config.environment is not None else {}
    for pattern, role in roles.items():
        if role.behavior is not None:
            yield from _listed(config, ("environment", "behaviors", pattern, "behavior"), role.behavior)


def _about_names(config: Sections) -> Iterator[Finding]:
    for key in () if config.environment is None else config.environment.keys:  # by name, or by id with team
        yield from _listed(config, ("environment", "keys", key), key.partition("?")[0])
    if config.record is not None and config.record.behaviors != "all":
        for index, name in enumerate(config.record.behaviors):
            yield from _listed(config, ("record", "behaviors", index), name)
    for number, stage in enumerate(config.pipeline.stages):
        for index, name in enumerate(stage.behaviors or ()):
            yield from _listed(config, ("pipeline", "stages", number, "behaviors", index), name)


def _about_lessons(config: Sections) -> Iterator[Finding]:
    for path, criteria, _ in config.completion_criteria():
        yield from _listed(config, (*path, "behavior"), criteria.behavior)
        settings = config.behaviors.get(criteria.behavior, config.default_settings)
        if criteria.measure == "Elo" and settings is not None and settings.self_play is None:
            message = f"'Elo' needs self_play, which {criteria.behavior} does not have; add it, or measure 'reward'"
            yield Finding((*path, "measure"), message, ((*path, "measure"), _BEHAVIORS, _DEFAULT))


def _listed(config: Sections, path: KeyPath, name: str, fix: str = "") -> Iterator[Finding]:
    """Report behaviours that are not listed, unless `default_settings` exists."""
    if name in (*config.behaviors, *config.met_behaviors) or config.default_settings is not None:
        return
    hint = suggest(name, config.behaviors) or f"; listed: {', '.join(config.behaviors) or 'none'}"
    message = f"'{name}' is not listed under behaviors{hint}{f' ({fix})' if fix else ''}"
    yield Finding(path, message, (path, _BEHAVIORS, _DEFAULT))


def _about_ghosts(config: Sections) -> Iterator[Finding]:
    for index, stage in enumerate(config.pipeline.stages):
        names = stage.behaviors or tuple(config.behaviors)
        blocks = [config.behaviors.get(name, config.default_settings) for name in names] or [config.default_settings]
        if stage.after == "ghost" and all(settings is None or settings.self_play is None for settings in blocks):
            message = "the ghost stage exists only with self_play; use 'agent_processor'"
            yield Finding(("pipeline", "stages", index, "after"), message, (_BEHAVIORS, _DEFAULT))


def _about_learning_teams(config: Sections) -> Iterator[Finding]:
    """Report runs in which only some behaviours learn in turns."""
    rules = {path: block.self_play.learning_teams for path, block in _blocks(config) if block.self_play is not None}
    by_turns = [path for path, rule in rules.items() if rule == "turns"]
    for path, rule in rules.items():
        if rule == "all" and by_turns:
            at, other = "self_play", dotted((*by_turns[0], "self_play"))
            message = (
                f"'all' can't be combined with {other}, whose teams learn in turns; expected the same value for all "
                "behaviours"
            )
            yield Finding((*path, at, "learning_teams"), message, ((*by_turns[0], at),))


# People who play in the run itself: the behaviours with `brain: player`, and what they require of other sections.


def persons_in(config: Sections) -> list[tuple[KeyPath, BrainSettings]]:
    """Return the brains of human players, each with the path of its behaviour's block; empty if no agent acts."""
    if config.replay is not None:
        return []
    return [(path, brain) for path, block in _blocks(config) for brain in block.brain if brain.use == PLAYER]


def _about_persons(config: Sections) -> Iterator[Finding]:
    """Report settings that conflict with a human player, who plays all games in the only environment instance."""
    persons = persons_in(config)
    if not persons:
        return
    for path, brain in persons:
        if brain.weight < 1:
            message = f"a person plays all games, not a share of {brain.weight:g}; leave weight out"
            yield Finding((*path, "brain"), message)
    first: KeyPath = (*persons[0][0], "brain")
    if config.environment is not None and config.environment.num_envs != 1:
        message = (
            f"{config.environment.num_envs} instances, but with brain 'player' a person plays in a single instance; "
            "set it to 1"
        )
        yield Finding(("environment", "num_envs"), message, (first,))
    replicas = config.pipeline.hosts.actors.replicas
    if replicas != 1:
        message = f"{replicas} actors, but with brain 'player' a person plays in a single actor; set it to 1"
        yield Finding(("pipeline", "hosts", "actors", "replicas"), message, (first,))
    if config.pipeline.deterministic:
        message = "can't be combined with brain 'player': a person's actions can't be reproduced; leave it out"
        yield Finding(("pipeline", "deterministic"), message, (first,))
    if config.evaluation is not None and not config.checkpoint_settings.inference:
        message = (
            "can't be combined with brain 'player': evaluation games run at full speed, in separate instances without "
            "a player; leave it out, and evaluate the policy in a run against another brain"
        )
        yield Finding(("evaluation",), message, (first,))


# Warnings.


def _about_other_systems(config: Sections) -> Iterator[Finding]:
    """Report paths of Windows on other systems, and names of folders that are the same on Windows and macOS."""
    for section, path in (("checkpoint_settings", "results_dir"), ("env_settings", "env_path")):
        given = getattr(getattr(config, section), path) or ""
        if sys.platform != "win32" and is_of_windows(given):
            yield Finding((section, path), f"'{given}' is a Windows path, which does not exist on this system")
    by_lower: dict[str, str] = {}
    for name in config.behaviors:
        other = by_lower.setdefault(unicodedata.normalize("NFC", name).lower(), name)
        if other != name:
            composed = other.lower() != name.lower()
            how = "the form of its accents (Unicode NFC or NFD)" if composed else "upper and lower case"
            systems = "macOS" if composed else "Windows and macOS"
            message = f"differs from {other} only in {how}, so {systems} would use the same folder for both"
            yield Finding(("behaviors", name), message)


def _about_recorded_brains(config: Sections) -> Iterator[Finding]:
    """Report behaviours that should be recorded, although no recorder receives the steps of their brains."""
    record, blocks = config.record, _blocks(config)
    if record is None or (record.behaviors == "all" and any(settings.learns for _, settings in blocks)):
        return
    teachers = {settings.teacher for _, settings in blocks}
    for name, settings in config.behaviors.items():
        if settings.learns or not (record.behaviors == "all" or name in record.behaviors):
            continue
        if not settings.broadcast or ("agent_processor" not in record.edges and name not in teachers):
            key = (*_BEHAVIORS, name, "broadcast")
            message = (
                f"the steps of {name} will not be recorded, because a brain controls it; to record them, set "
                f"{dotted(key)}: true and record.edges: [agent_processor]"
            )
            yield Finding(("record",), message, (("record", "edges"), key))


def _about_demonstrations_alone(config: Sections) -> Iterator[Finding]:
    """Report behaviours that learn without acting while others act."""
    if config.replay is not None or config.checkpoint_settings.inference:
        return
    alone = [
        name for name, settings in config.behaviors.items() if settings.learns and settings.demonstrations is not None
    ]
    others = [name for name in config.behaviors if name not in alone]
    for name in alone if others else ():
        message = (
            f"learns only from demonstrations, and {others[0]} does not, so one run can't train both. This run leaves "
            f"{name} out, and fails if its environment has agents of that behaviour. Train {name} in a separate run, "
            "or let it imitate a 'teacher' of this run"
        )
        yield Finding(("behaviors", name), message)


def _about_parameters_of_unity(config: Sections) -> Iterator[Finding]:
    for name in config.environment_parameters or () if config.environment_kind is ENVIRONMENT_KINDS[UNITY] else ():
        if not name.isascii():
            message = f"'{name}' is not ASCII, and Unity would read '?' for other characters; rename it"
            yield Finding(("environment_parameters", name), message)


def _about_checkpoints(config: Sections) -> Iterator[Finding]:
    settings = config.checkpoint_settings
    if settings.resume and settings.initialize_from is not None:
        message = "has no effect, because 'resume: true' takes precedence"
        yield Finding(("checkpoint_settings", "initialize_from"), message)


def _about_listening(config: Sections) -> Iterator[Finding]:
    of_unity = config.environment is None or config.environment.kind == UNITY
    if of_unity and config.replay is None and reaches_others(config.env_settings.listen):
        message = (
            "lets any machine that can reach this one connect in place of Unity, see the actions and end the run; "
            "'localhost' is enough for a Unity process on this machine"
        )
        yield Finding(("env_settings", "listen"), message)


def _about_misspelt_roles(config: Sections) -> Iterator[Finding]:
    roles = config.environment.behaviors if config.environment is not None else {}
    for pattern, role in roles.items():
        hint = suggest(role.behavior or "", config.behaviors)
        if hint and role.behavior not in (*config.behaviors, *config.met_behaviors):
            message = f"'{role.behavior}' is not listed under behaviors, so it learns with default_settings{hint}"
            yield Finding(("environment", "behaviors", pattern), message)


def _about_curricula(config: Sections) -> Iterator[Finding]:
    for path, criteria, last in config.completion_criteria():
        if not last and criteria.measure == "reward" and not criteria.min_lesson_length:
            message = "is 0, so the lesson can end after a single lucky episode; 100 is usual"
            yield Finding((*path, "min_lesson_length"), message)


# Warnings about one behaviour; the findings' paths start at its block.


def _about_learning(config: Sections, settings: BehaviorSettings) -> Iterator[Finding]:
    yield from _about_self_play(settings)
    yield from _about_sequences(settings)
    yield from _about_trainer(settings)
    if settings.network_settings.deterministic and not _plays_only(config, settings):
        message = (
            "the policy does not explore while it learns, which rarely works; this setting is meant for --inference"
        )
        yield _about("network_settings.deterministic", message)


def _plays_only(config: Sections, settings: BehaviorSettings) -> bool:
    """Return True if no trainer learns from the agents' actions."""
    imitates = declared_kind(settings.trainer_type).imitates
    return config.checkpoint_settings.inference or config.replay is not None or imitates


def _about(keys: str, message: str) -> Finding:
    """Return a finding about a dotted key, which must not contain user-chosen names, because these may contain dots."""
    return Finding(tuple(keys.split(".")), message)


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


def _about_sequences(settings: BehaviorSettings) -> Iterator[Finding]:
    memory = settings.network_settings.memory
    if memory is None or not isinstance(settings.hyperparameters, Hyperparameters):
        return
    path, length = "network_settings.memory.sequence_length", memory.sequence_length
    unroll = settings.hyperparameters.longest_piece
    imitates = declared_kind(settings.trainer_type).imitates
    if length > settings.time_horizon and unroll is None and not imitates:
        yield _about(
            path,
            f"{length} is longer than time_horizon ({settings.time_horizon}), at which trajectories are cut, so "
            f"sequences have at most {settings.time_horizon} steps, and the rest of each is padding",
        )
    sizes: dict[str, int] = {}
    if unroll is None and (batch_size := getattr(settings.hyperparameters, "batch_size", None)) is not None:
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
    if isinstance(settings.hyperparameters, Hyperparameters):
        yield from (finding for finding in settings.hyperparameters.check(settings) if finding.warns)
        size = settings.hyperparameters.rows_per_update or 0
        if size > settings.max_steps:
            sizes = ("train_freq", "buffer_size", "batch_size")
            key = next(name for name in sizes if hasattr(settings.hyperparameters, name))
            yield _about(
                f"hyperparameters.{key}",
                f"{size} steps exceed max_steps ({settings.max_steps}): training ends before the first update, "
                "and nothing is learned",
            )


def about_leagues(config: Sections) -> Iterator[Finding]:
    """Report settings that conflict with a league, where each actor plays for one learner."""
    if config.default_settings is not None and config.default_settings.league is not None:
        message = "is valid only under a behaviour, whose learners it defines; move it there"
        yield Finding((*_DEFAULT, "league"), message)
    leagues = {name: settings.league for name, settings in config.behaviors.items() if settings.league is not None}
    learners = {name: league for name, league in leagues.items() if league.of}  # an invalid league has no learners
    pipeline, hosts = config.pipeline, config.pipeline.hosts
    path: KeyPath = ("pipeline", "hosts", "actors", "replicas")
    if pipeline.deterministic and hosts.actors.replicas not in (1, len(leagues)):
        message = f"{hosts.actors.replicas} conflicts with 'deterministic: true', which needs {max(1, len(leagues))}"
        more = "" if leagues else "; raise environment.num_envs instead"
        yield Finding(path, message + more, (("pipeline", "deterministic"),))
    if not learners or config.checkpoint_settings.inference:
        return
    first, rival = next(iter(learners.items()))
    where: KeyPath = (*_BEHAVIORS, first, "league")
    for name, settings in config.behaviors.items():
        if settings.league is None:
            message = f"has no league, but {rival.of} has one; add a `league` here, or remove the league of {rival.of}"
            yield Finding((*_BEHAVIORS, name), message, (where,))
    yield from _about_common_keys(learners)
    yield from _about_placement(config, learners)
    yield from _about_teams(config, {league.of for league in learners.values()})
    for league in learners.values() if pipeline.deterministic else ():
        if (actors := league.learners[league.learner].actors) > 1:
            message = (
                f"{actors} conflicts with 'deterministic: true', which needs 1; raise environment.num_envs instead"
            )
            actors_key = (*_BEHAVIORS, league.of, "league", "learners", league.learner, "actors")
            yield Finding(actors_key, message, (("pipeline", "deterministic"),))
    wanted = sum(league.learners[league.learner].actors for league in learners.values())
    if not hosts.actors.is_auto("replicas") and hosts.actors.replicas not in (1, wanted):
        whose = ", ".join(dict.fromkeys(league.of for league in learners.values()))
        message = (
            f"{hosts.actors.replicas} conflicts with the league of {whose}, whose learners have {wanted} actors in "
            "total; leave it out"
        )
        yield Finding(path, message, (path, where))
    if pipeline.inference == "central":
        message = "'central' can't be combined with a league, whose actors run their own policies; leave it out"
        yield Finding(("pipeline", "inference"), message, (where,))
    resets = any(league.learners[league.learner].reset for league in learners.values())
    for key, several in (("learners", hosts.learners.replicas > 1), ("replay", hosts.replay.kind is not None)):
        if resets and several:
            message = "can't be combined with league learners that are reset; leave it out"
            yield Finding(("pipeline", "hosts", key), message, (where,))


def _about_common_keys(learners: Mapping[str, LeagueSettings]) -> Iterator[Finding]:
    """Report keys that differ between leagues but must not, because all leagues in a run share one payoff table."""
    (name, first), *others = learners.items()
    for other, league in others:
        for key in ("payoff", "decay", "meta_solver", "rating", "learning", "turn_steps", "quality_rate"):
            mine, theirs = getattr(league, key), getattr(first, key)
            if mine != theirs:
                message = (
                    f"{mine!r} here, but {theirs!r} in the league of {first.of}; all leagues of a game must use "
                    "the same value"
                )
                yield Finding((*_BEHAVIORS, other, "league", key), message)
    if not others and first.learning == "turns":
        message = f"'turns' needs several learners, but {name} is the only one; leave it out"
        yield Finding((*_BEHAVIORS, name, "league", "learning"), message)
    if len(first.rivals) > 1 and first.meta_solver is not None:
        message = (
            f"'{first.meta_solver}' supports games of one or two behaviours, but {1 + len(first.rivals)} have leagues"
        )
        yield Finding((*_BEHAVIORS, name, "league", "meta_solver"), f"{message}; leave it out")


def _about_placement(config: Sections, learners: Iterable[str]) -> Iterator[Finding]:
    """Report learners that request resources for hosts whose kind can't request resources."""
    for name in learners:
        key = placement_key(config, name)
        for finding in placement_of(config, name).not_on_ray(config.pipeline.hosts):
            yield Finding((*key, *finding.path), finding.message, finding.involves)


def _about_teams(config: Sections, sides: Collection[str]) -> Iterator[Finding]:
    """Report teams that several behaviours with leagues share.

    If roles define teams, also report behaviours with several teams.
    """
    environment = config.environment
    if environment is None or len(sides) < 2:
        return
    alone = environment.kind == "open_spiel"  # each player is a team, unless the YAML defines teams
    seen: dict[str | int, str] = {}
    for pattern, role in environment.behaviors.items():
        team = role.team if role.team is not None or alone else 0
        of = role.behavior or environment.behavior
        if team is None or of is None or of not in sides:
            continue
        other = next((name for other_team, name in seen.items() if (other_team == team) != (name == of)), None)
        seen[team] = of
        if other is None and team != "each":
            continue
        fault = f"{of} has several teams" if other in (None, of) else f"{of} and {other} both have team {team}"
        message = (
            f"{fault}, but leagues of several behaviours are for games in which each team has a different behaviour; "
            "give the agents of all teams the same behaviour, or each team a different one"
        )
        yield Finding(("environment", "behaviors", pattern), message)
