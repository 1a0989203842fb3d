"""Players in an evaluation, and opponents: the players that an evaluated policy plays against.

A player decides for the agents of one behaviour id, given the rows that need a decision. Opponents are the agents of
other teams or, in an environment with only one team, those of other behaviours. The agents of an evaluated policy's
teammates always use their own newest policies. The table of opponents is in `headrace.config.opponents`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from headrace.config import RunConfig
from headrace.config.errors import dotted
from headrace.config.opponents import EVALUATION_OPPONENTS, EvaluationSettings
from headrace.queues.messages import ActionBatch, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains import BrainRequest, UniformBrain, check_brain, make_brain
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.errors import LoadError
from headrace.stages.loading import check_arguments, construct, find_class
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.protocol import ActingPolicy

SEED = 20_261
"""Seed of every evaluation. All policies play the same episodes, so their scores are comparable."""

Player = Callable[[AgentSteps], ActionBatch]
"""Function that returns actions for the d agents that need a decision."""


class GreedyPlayer:
    """A player that takes the most likely actions of a policy or a brain, and keeps its agents' memories.

    Args:
        policy: the policy or brain, with its weights.
        spec: the behaviour id's spec.
        seed: the seed of the player's random numbers.
    """

    deterministic = True

    def __init__(self, policy: ActingPolicy, spec: BehaviorSpec, seed: Sequence[int] = (SEED,)) -> None:
        self._policy = policy
        self._memories = AgentMemories.for_policy(policy, spec.actions)
        self._random = np.random.default_rng((*seed, zlib.crc32(spec.behavior_id.encode())))

    def load(self, update: PolicyUpdate) -> None:
        """Use these weights from the next decision onwards, without dropping memories."""
        self._policy.load(update)

    def __call__(self, steps: AgentSteps) -> ActionBatch:
        """Decide for each agent that needs a decision."""
        observations = tuple(o[steps.ended :] for o in steps.observations)
        agent_ids, episode_ids = steps.agent_ids[steps.ended :], steps.episode_ids[steps.ended :]
        recall = None
        if self._memories is not None:
            self._memories.forget(steps.agent_ids[: steps.ended])
            recall = self._memories.recall(agent_ids, episode_ids)
        masks, greedy = steps.action_masks, self.deterministic
        decision = self._policy.act(observations, masks, self._random, deterministic=greedy, recall=recall)
        if self._memories is not None and decision.recall is not None:
            self._memories.keep(agent_ids, episode_ids, decision.recall)
        return decision.actions


class DrawingPlayer(GreedyPlayer):
    """A player that samples its actions, as in training."""

    deterministic = False


def uniform_player(spec: BehaviorSpec) -> Player:
    """Make a player with random actions."""
    return GreedyPlayer(UniformBrain(spec.actions), spec)


def made_on_demand(make: Callable[[str], Player]) -> Callable[[str, AgentSteps], ActionBatch]:
    """Return a function for `play` that decides with a player for each behaviour id.

    Args:
        make: makes a behaviour id's player; called when the id's first rows arrive.
    """
    players: dict[str, Player] = {}

    def decide(behavior_id: str, steps: AgentSteps) -> ActionBatch:
        if behavior_id not in players:
            players[behavior_id] = make(behavior_id)
        return players[behavior_id](steps)

    return decide


_KEY = ("evaluation", "opponents")

PlayPolicy = Callable[[BehaviorSpec, PolicyUpdate | None], Player]
"""Function that makes a player from a policy; the policy is None if it is not known yet."""


class EvaluationOpponents(Protocol):
    """A kind of opponent; makes the player for each behaviour id that the opponents play."""

    everyone_counts: bool
    """True if the evaluated policy plays for all its teams simultaneously; False if it plays for one team at a time."""

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Make a player for one evaluation.

        Args:
            spec: the behaviour id's spec.
            newest: the behaviour's newest policy; None if there is none yet.
            play: makes a player from a policy.
        """
        ...


class SnapshotStore(Protocol):
    """Stores the opponents' policies across resumes."""

    def read(self, behavior: str) -> PolicyUpdate | None:
        """Return the policy stored for a behaviour name; None if there is none."""
        ...

    def keep(self, policy: PolicyUpdate, spec: BehaviorSpec) -> None:
        """Store a behaviour's policy."""
        ...


class NewestOpponents:
    """Opponents that play the newest policies."""

    everyone_counts = True

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Make a player from the newest policy."""
        return play(spec, newest)


class SnapshotOpponents:
    """Opponents that always play the policies of the first evaluation, so scores are comparable.

    Args:
        store: stores the policies.
    """

    everyone_counts = False

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._kept: dict[str, PolicyUpdate] = {}

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Make a player from the stored snapshot.

        If no snapshot is stored yet, first store the newest policy as the snapshot.
        """
        if spec.name not in self._kept:
            kept = self._store.read(spec.name)
            if kept is None and newest is not None:
                self._store.keep(newest, spec)
                kept = newest
            if kept is None:
                return play(spec, None)
            self._kept[spec.name] = kept
        return play(spec, self._kept[spec.name])


class BrainOpponents:
    """Opponents controlled by a brain that does not learn; each behaviour id in each evaluation gets a new brain.

    Args:
        request: the request for the brain.
    """

    everyone_counts = False

    def __init__(self, request: BrainRequest) -> None:
        self._request = request

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Make a player from a new brain.

        Raises:
            StageError: if the brain can't be made.
        """
        return GreedyPlayer(make_brain(replace(self._request, spec=spec)), spec)


def make_opponents(config: RunConfig, store: SnapshotStore) -> EvaluationOpponents:
    """Make the opponents configured in the YAML.

    Raises:
        LoadError: if a brain can't be made.
    """
    settings = config.evaluation
    assert settings is not None, "only evaluation calls this"
    built_in = EVALUATION_OPPONENTS.get(settings.opponents)
    if built_in is None:
        request = _request(config, settings)
        for mistake in check_brain(request):
            raise mistake
        return BrainOpponents(request)
    where, use = dotted(_KEY), settings.opponents
    implementation = find_class(where, built_in.implementation, None)
    arguments = check_arguments(where, use, implementation, {}, {"store": store})
    opponents: EvaluationOpponents = construct(where, use, implementation, arguments)
    return opponents


def check_opponents(config: RunConfig) -> list[LoadError]:
    """Find mistakes that would prevent the opponents from being made, as far as possible without making any."""
    settings = config.evaluation
    if settings is None or settings.opponents in EVALUATION_OPPONENTS:
        return []
    return check_brain(_request(config, settings))


def _request(config: RunConfig, settings: EvaluationSettings) -> BrainRequest:
    return BrainRequest(
        settings.opponents,
        settings.opponents_with,
        _KEY,
        ("evaluation", "opponents_with"),
        config.source_folder,
        config.builtin_game,
        SEED,
    )
