"""Children that start before main's own imports, as soon as the configuration shows which ones a run needs.

Imports take most of a child's start, so all processes import in parallel. A child imports its modules, then waits for a
message that assigns its host. If the need for a host could not be foreseen, its child starts together with the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.trainers import TRAINERS
from headrace.pipeline.common.graph import actor_names, acts, learner_name
from headrace.pipeline.common.process import usable_cores
from headrace.pipeline.hosts.spawn import ChildProcess

_early: dict[str, ChildProcess] = {}
"""Unassigned children, keyed by the name of the intended host. A run takes children by name. If two runs in one process
need the same name, either may take the child, because unassigned children are interchangeable.
"""


def take_child(name: str) -> ChildProcess:
    """Return the child started early for a host; start a new one if there is none."""
    return _early.pop(name, None) or ChildProcess(name)


# Imports take most of a start, so children import while main does (docs/decisions/009).
@contextmanager
def started_early(
    config: RunConfig, start: Callable[[str, Sequence[str]], ChildProcess] = ChildProcess
) -> Iterator[None]:
    """Start the children that a run is certain to need; at the end of the context, end those that were never used."""
    try:
        with suppress(OSError):  # at a system limit, which the host's own start will report
            for name, modules in _expected(config):
                if name not in _early:
                    _early[name] = start(name, modules)
        yield
    finally:
        dismiss_early()


def dismiss_early() -> None:
    """End unused children, such as those for behaviours that are listed but missing from the environment."""
    while _early:
        _early.popitem()[1].dismiss()


def _expected(config: RunConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield each process host's name and the modules it imports; learners come first, because they take longest."""
    hosts = config.pipeline.hosts
    if hosts.learners.kind == "process":
        needed: dict[str, list[str]] = {}
        for behavior, process in learner_processes(config).items():
            needed.setdefault(process, []).extend(modules_of_learner(config, behavior))
        yield from ((process, [*dict.fromkeys(modules)]) for process, modules in needed.items())
    if hosts.actors.kind == "process":
        for name in actor_names(config):
            yield name, [f"headrace.pipeline.roles.{'actor' if acts(config) else 'replay'}"]


def learner_processes(config: RunConfig) -> dict[str, str]:
    """Return the learner process's name for each listed behaviour; a process is named after its first learner."""
    behaviors = learners_of(config)
    count = most_learner_processes(config)
    return {behavior: learner_name(behaviors[number % count]) for number, behavior in enumerate(behaviors)}


def most_learner_processes(config: RunConfig) -> int:
    """Return the maximum number of learner processes; a learner with followers does not share its process."""
    learners = config.pipeline.hosts.learners
    if learners.replicas > 1:
        return max(1, len(config.behaviors))
    return usable_cores() if learners.processes == "auto" else learners.processes


def imported_in_main(config: RunConfig) -> list[str]:
    """Return the modules that main imports for the learner hosts in its own process."""
    in_main = HOST_KINDS[config.pipeline.hosts.learners.kind].in_main
    return [module for name in learners_of(config) for module in modules_of_learner(config, name)] if in_main else []


def learners_of(config: RunConfig) -> list[str]:
    """Return the listed behaviours that the run trains."""
    if config.checkpoint_settings.inference:
        return []
    return [behavior for behavior, settings in config.behaviors.items() if settings.learns]


def modules_of_learner(config: RunConfig, behavior: str) -> list[str]:
    """Return the modules that a behaviour's learner imports: torch and Headrace's own."""
    trainer = TRAINERS.get(config.behaviors[behavior].trainer_type)
    trainers = [] if trainer is None else [trainer.implementation.partition(":")[0]]
    return ["torch", "headrace.pipeline.roles.learner", *trainers]
