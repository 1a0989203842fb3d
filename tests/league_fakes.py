"""A small league for tests: settings, policies, games."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.config.league import LeagueSettings
from headrace.queues.messages import Columns, PolicyUpdate
from headrace.stages.league.controller import LeagueController, Reset
from headrace.stages.league.pool import Member, Pool

MAX_STEPS = 4500


def policy(learner: str = "main", step: int = 0, fill: float = 0.0, version: int = 0) -> PolicyUpdate:
    """A policy of three weights."""
    return PolicyUpdate(f"Duel.{learner}", version, np.full(3, fill, np.float32), (("w", (3,)),), step)


def settings(league: object) -> LeagueSettings:
    """The settings of a league of a behaviour with `MAX_STEPS` steps."""
    return LeagueSettings.model_validate(league).for_steps(MAX_STEPS)


def controller(folder: Path, league: object, seed: int = 0) -> LeagueController:
    """A controller with its pool in a folder."""
    return LeagueController("Duel", settings(league), Pool(folder), np.random.default_rng(seed))


def receive_policy(league: LeagueController, learner: str, update: PolicyUpdate) -> Reset | None:
    """Let a learner have a new policy, and freeze it if it is due, as main does."""
    freeze = league.note_policy(learner, update)
    return None if freeze is None else league.frozen(freeze, league.write(freeze))


def added(pool: Pool, update: PolicyUpdate, learner: str, parent: int) -> Member:
    """Make a policy a member."""
    member = pool.write(update, learner, parent)
    pool.enter(member)
    return member


def games(*played: tuple[int, int, float], returns: float = 1.0) -> Columns:
    """Games of two teams: the code of the seat's player, the opponent's, and the seat's outcome.

    The seat is team 0 and team 1 in turns; who wins gets `returns` and who loses as much below 0.
    """
    rows, seats = np.arange(len(played)), np.arange(len(played)) % 2
    own, others, outcomes = np.array(played, np.float32).reshape(-1, 3).T
    players, gained = np.zeros((len(played), 2), np.int32), np.zeros((len(played), 2), np.float32)
    players[rows, seats], players[rows, 1 - seats] = own, others
    gained[rows, seats] = returns * (2 * outcomes - 1)
    gained[rows, 1 - seats] = -gained[rows, seats]
    return {
        "game_generation": np.zeros(len(played), np.int32),
        "game_team": seats.astype(np.int32),
        "game_opponent": others.astype(np.int32),
        "game_outcome": outcomes,
        "game_players": players,
        "game_returns": gained,
    }
