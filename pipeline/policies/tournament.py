"""`--tournament`: lets policies, models and scripts play each other; writes a rating table, a matrix and JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from headrace.config import Override, RunConfig, load_config
from headrace.config.brains import LEARNING, PLAYER, SCRIPTED_PLAYERS, kind_of
from headrace.pipeline.common.errors import CommandError, RunError
from headrace.pipeline.common.seeds import choose_seed
from headrace.pipeline.policies.export import exports_by_step, step_in_name
from headrace.pipeline.policies.model_files import behaviors_in, leagues_at, learners_in, members_in, pool_folder
from headrace.pipeline.run_folder.names import CONFIGURATION, behavior_folder
from headrace.queues.files import write_atomic
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains import BrainRequest, make_brain
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.parameters import EpisodeParameters, connect_parameters, final_parameters
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, maybe_await
from headrace.stages.errors import BrokenEnvironmentError, StageError
from headrace.stages.evaluation.opponents import DrawingPlayer, GreedyPlayer, Player
from headrace.stages.evaluation.scores import aligned
from headrace.stages.evaluation.tournament import PairResult, check_teams, matrix, play_pairs, single_games
from headrace.stages.ghost.policy_history import Record
from headrace.stages.ghost.rating import SkillRating, fitted_ratings, skill
from headrace.startup_context import absolute

log = logging.getLogger(__name__)

_OPTION = "--tournament"
USUAL_GAMES = 20
"""Default number of games per pair."""
ALL = "@all"
"""Suffix after a run's folder that means every exported policy with a step in its name."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A player's result in a tournament."""

    name: str
    rating: float
    """Elo rating, fitted to all games; the ratings' mean is 1200."""
    margin: float
    """Half the width of the rating's 95 % confidence interval."""
    skill: float | None
    """openskill rating; None if openskill is not installed."""
    won: int
    drawn: int
    lost: int


def open_table(
    players: Sequence[str], config_file: Path | None, overrides: Sequence[Override | str]
) -> TournamentTable:
    """Return the tournament that a command line describes, before its first game.

    Args:
        players: the players, as the command names them.
        config_file: the game's configuration; None to use that of the first player in a run's folder.
        overrides: values that override the configuration.

    Raises:
        CommandError: if there is no game to play.
        ConfigError: if the game's configuration is invalid.
        RunError: if a player can't play.
    """
    config = load_config(config_file or _configuration_of(players, overrides), overrides)
    entrants = entrants_of(players, config.checkpoint_settings.results_dir, config.builtin_game)
    deterministic = any(block.network_settings.deterministic for _, block in config.blocks())
    seed = choose_seed(config.env_settings.seed)
    return TournamentTable(config, entrants, config.inference.episodes or USUAL_GAMES, seed, deterministic)


def _configuration_of(players: Sequence[str], overrides: Sequence[Override | str]) -> Path:
    """Return the configuration of the first player that is in a run's folder."""
    results = [
        override.value
        for override in overrides
        if isinstance(override, Override) and override.path[-1] == "results_dir"
    ]
    for player in players:
        folder = run_folder_of(found_below(player, results[-1] if results else "results"))
        if folder is not None:
            return folder / CONFIGURATION
    raise CommandError(
        f"{_OPTION} {' '.join(players)}: the game is unknown, because none of these players is in a run's folder; name "
        f"one that is, or give the game's configuration: run-pipeline CONFIG {_OPTION} …"
    )


def run_folder_of(player: str) -> Path | None:
    """Return the folder of the run that a model reference belongs to; None if it belongs to no run."""
    path = Path(player if Path(player).exists() else player.rpartition("@")[0] or player)
    return next((folder for folder in (path, *path.parents[:2]) if (folder / CONFIGURATION).is_file()), None)


def entrants_of(players: Sequence[str], results_dir: str, game: str | None) -> list[str]:
    """Return the named players, with `@all` expanded.

    If a run is the only name, expand it to its policies and add a scripted or random player, or to its league's
    members.

    Raises:
        RunError: if a name does not refer to a player or occurs twice, or if there are fewer than two players.
    """
    entrants, wrong = [], []
    named = [found_below(player, results_dir) for player in players]
    if len(named) == 1 and Path(named[0]).is_dir():
        other = "scripted" if game in SCRIPTED_PLAYERS else "random"
        named = [named[0] + ALL] + [other] * (not leagues_at(absolute(named[0]))[1])
    for use in named:
        if kind_of(use) in (None, LEARNING, PLAYER) and not Path(use).is_dir():
            wrong.append(
                f"{use}: unknown player; expected the folder of a run (results/first, results/first@best, "
                "results/first@500000, results/first@all, results/first@member-3), a .pt or .onnx file, scripted, "
                "random or module:Class"
            )
        elif use.endswith(ALL):
            entrants += _all_of(use.removesuffix(ALL), wrong)
        else:
            entrants.append(use)
    wrong += [f"{name} is given twice" for name in dict.fromkeys(entrants) if entrants.count(name) > 1]
    if not wrong and len(entrants) < 2:
        wrong.append(f"{', '.join(entrants)} has no opponent: name another player, such as random")
    if wrong:
        raise RunError("\n".join(f"{_OPTION} {mistake}" for mistake in wrong))
    return entrants


def found_below(player: str, results_dir: str) -> str:
    """Return a player's model reference; a run id is replaced by the run's folder."""
    run, at, choice = player.rpartition("@") if "@" in player else (player, "", "")
    below = absolute(results_dir) / run
    return f"{below}{at}{choice}" if run and not Path(run).exists() and below.is_dir() else player


def _all_of(run: str, wrong: list[str]) -> list[str]:
    """Return references to a run's policies, in step order; for a league, to its pool members and newest learners."""
    folder = Path(run)
    run_folder, leagues = leagues_at(absolute(run))
    if leagues:
        if len(learners_in(run_folder)) > 1:
            wrong.append(f"{run}{ALL}: it has leagues of several behaviours, but a tournament's player plays all teams")
            return []
        members = [member.use or f"{run}@member-{member.number}" for member in members_in(pool_folder(run_folder))]
        (learners,) = leagues.values()
        return list(dict.fromkeys([*members, *(str(behavior_folder(run_folder, name)) for name in learners)]))
    behaviors = behaviors_in(folder) if folder.is_dir() else []
    exports = [(folder / name, name) for name in behaviors] or [(folder, folder.name)]
    steps = [{step_in_name(path) for path in exports_by_step(*export)} for export in exports]
    shared = sorted(set.intersection(*steps))
    if not shared:
        names = ", ".join(name for _, name in exports)
        wrong.append(f"{run}{ALL}: there is no step at which all of these have a policy: {names}")
    return [f"{run}@{step}" for step in shared]


class TournamentTable:
    """Plays a tournament and reports its results.

    Args:
        config: the game's configuration.
        players: the players.
        games: number of games per pair.
        seed: seed of all randomness.
        deterministic: True to take the most likely actions instead of sampled ones.

    Attributes:
        config: the game's configuration, without idle environment instances.
        results: results of the pairs that have played.
    """

    def __init__(self, config: RunConfig, players: Sequence[str], games: int, seed: int, deterministic: bool) -> None:
        self.results: list[PairResult] = []
        self.config = _for_so_many(config, games)
        self._players = players
        self._games = games
        self._seed = seed
        self._player_class = GreedyPlayer if deterministic else DrawingPlayer

    async def play(self, stop: asyncio.Event) -> None:
        """Play until all games are played or `stop` is set.

        Raises:
            RunError: if the game is not for two teams, or players can't play it; the message names all of these
                players.
        """
        parameters = EpisodeParameters()
        parameters.receive(final_parameters(self.config.environment_parameters))
        try:
            group = make_group(EnvironmentRequest(self.config, self._seed))
            try:
                connect_parameters(group, parameters)

                async def reset() -> StepResult:
                    parameters.reseed(self._seed)
                    return await maybe_await(group.reset, self._seed)

                await reset()
                check_teams(group)
                self._check(group)
                async for result in play_pairs(group, len(self._players), self._games, self._make, reset, stop):
                    self._report(result)
            finally:
                await maybe_await(group.close)
        except (StageError, BrokenEnvironmentError) as error:
            raise RunError(f"{_OPTION}: {error}") from error

    def standings(self) -> list[Standing]:
        """Return the results of all players, strongest first."""
        counts = matrix(self.results, len(self._players))
        ratings, margins = fitted_ratings(counts @ np.array([1.0, 0.5, 0.0]), counts.sum(axis=2).astype(np.float64))
        skills, totals = self._skills(), counts.sum(axis=1).tolist()
        standings = [
            Standing(name, float(rating), float(margin), skill, *total)
            for name, rating, margin, skill, total in zip(self._players, ratings, margins, skills, totals, strict=True)
        ]
        return sorted(standings, key=lambda standing: -standing.rating)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write the results as JSON and the matrix as an image; return both paths.

        Raises:
            OSError: if a file can't be written.
        """
        from headrace.stages.ghost.league_plot import draw_matrix  # Pillow only where images are drawn

        standings = self.standings()
        order = [self._players.index(standing.name) for standing in standings]
        counts = matrix(self.results, len(self._players))[np.ix_(order, order)].astype(np.float64)
        title = "" if self.config.environment is None else self.config.environment.named
        heading = (f"{title}: {self._games} games per pair", "rows against columns; blue won, orange lost")
        report = {
            "environment": title,
            "games": self._games,
            "seed": self._seed,
            "deterministic": self._player_class is GreedyPlayer,
            "players": [asdict(standing) for standing in standings],
            "results": [
                {
                    "player": self._players[pair.first],
                    "opponent": self._players[pair.second],
                    "won": pair.won,
                    "drawn": pair.drawn,
                    "lost": pair.lost,
                }
                for pair in self.results
            ],
        }
        folder.mkdir(parents=True, exist_ok=True)
        data, picture = folder / "tournament.json", folder / "tournament.png"
        write_atomic(data, json.dumps(report, indent=1).encode())
        write_atomic(picture, draw_matrix(heading, [standing.name for standing in standings], counts))
        return data, picture

    def _check(self, group: EnvironmentGroup) -> None:
        """Create each player once per side, to report all players that can't play before the first game."""
        wrong: dict[tuple[str, str], None] = {}  # a reason that applies to both sides is reported once
        for number in range(len(self._players)):
            for spec in group.behavior_specs.values():
                try:
                    self._make(number, spec, ())
                except (StageError, RunError) as error:
                    wrong[self._players[number], str(error).removeprefix(f"{_OPTION}: ")] = None
        if wrong:
            raise RunError("\n".join(f"{_OPTION} {player}: can't play: {why}" for player, why in wrong))

    def _make(self, number: int, spec: BehaviorSpec, seed: Sequence[int]) -> Player:
        request = BrainRequest(self._players[number], {}, (_OPTION,), folder=self.config.source_folder)
        request = replace(request, game=self.config.builtin_game, seed=self._seed, spec=spec)
        return self._player_class(make_brain(request), spec, (self._seed, *seed))

    def _report(self, result: PairResult) -> None:
        self.results.append(result)
        pair = {result.first, result.second}
        sides = [side for side in self.results if {side.first, side.second} == pair]
        played = sum(side.won + side.drawn + side.lost for side in sides)
        if played < self._games:
            return
        won, drawn, lost = matrix(sides, len(self._players))[min(pair), max(pair)].tolist()
        names = self._players[min(pair)], self._players[max(pair)]
        log.info("%s against %s: %d won, %d drawn, %d lost.", *names, won, drawn, lost)

    def _skills(self) -> list[float | None]:
        """Return each player's openskill rating from the games, in seeded random order; None without openskill."""
        if find_spec("openskill") is None:
            return [None] * len(self._players)
        records, rating = [Record(0.0) for _ in self._players], SkillRating()
        games = [*single_games(self.results)]
        for place in np.random.default_rng(self._seed).permutation(len(games)):
            first, second, points = games[place]
            rating.rate([[records[first]], [records[second]]], [points, 1.0 - points])
        return [skill(record) for record in records]


def standings_table(standings: Sequence[Standing]) -> str:
    """Return the standings as a text table."""
    rated = any(standing.skill is not None for standing in standings)
    rows = [["player", "ELO (95 %)", *["skill"] * rated, "games", "points", "won", "drawn", "lost"]]
    for standing in standings:
        games = standing.won + standing.drawn + standing.lost
        points = f"{100 * (standing.won + standing.drawn / 2) / games:.1f} %" if games else ""
        rating_by_skill = ["" if standing.skill is None else f"{standing.skill:.1f}"] * rated
        rating = f"{standing.rating:.0f} ± {standing.margin:.0f}"
        results = (games, points, standing.won, standing.drawn, standing.lost)
        rows.append([standing.name, rating, *rating_by_skill, *map(str, results)])
    return aligned(rows)


def _for_so_many(config: RunConfig, games: int) -> RunConfig:
    """Return the configuration with no more environment instances than games per side, because others would be idle."""
    if config.environment is None or config.environment.kind in ("unity", "mlagents"):
        raise RunError(f"{_OPTION} supports built-in, PettingZoo and OpenSpiel games, but not Unity games")
    plain = config.to_plain()
    plain["environment"]["num_envs"] = min(config.environment.num_envs, -(-games // 2))
    return RunConfig.from_plain(plain, config.path)
