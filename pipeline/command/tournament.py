"""The command's `--tournament`: which game is played, by whom and how often, and what is printed."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.config import Override, RunConfig, load_config
from headrace.pipeline.command.parser import Request
from headrace.pipeline.command.signals import first_stops_second_cancels
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.common.loop_watch import LoopWatch
from headrace.pipeline.common.seeds import choose_seed
from headrace.pipeline.policies.tournament import (
    USUAL_GAMES,
    TournamentTable,
    entrants_of,
    found_below,
    run_folder_of,
    standings_table,
)
from headrace.pipeline.run_folder.folder import CONFIGURATION

log = logging.getLogger(__name__)

NAME = "tournament"
"""The folder that is written, below the folder of all runs, unless `--run-id` names another."""


def tournament(players: Sequence[str], request: Request, say: Callable[[str], None]) -> None:
    """Play, say the table and write the files.

    Raises:
        CommandError: if there is no game to be played, or a file can't be written.
        ConfigError: if the configuration of the game is wrong.
        RunError: if somebody can't play.
    """
    config = load_config(request.config or _configuration_of(players, request), request.overrides)
    settings = config.checkpoint_settings
    entrants = entrants_of(players, settings.results_dir, config.builtin_game)
    deterministic = any(each.network_settings.deterministic for _, each in config.blocks())
    seed = choose_seed(config.env_settings.seed)
    table = TournamentTable(config, entrants, config.inference.episodes or USUAL_GAMES, seed, deterministic)
    asyncio.run(_until_stopped(table, config))
    if not table.results:
        raise CommandError("--tournament: ended before a game was")
    overrides = [each for each in request.overrides if isinstance(each, Override)]
    named = any(each.path == ("checkpoint_settings", "run_id") for each in overrides)
    say(standings_table(table.standings()))
    folder = Path(settings.results_dir) / (settings.run_id if named else NAME)
    try:
        say("\n".join(map(str, table.write(folder))))
    except OSError as error:
        raise CommandError(f"--tournament: {folder} can't be written: {error.strerror}") from error


async def _until_stopped(table: TournamentTable, config: RunConfig) -> None:
    stop = asyncio.Event()
    with (
        LoopWatch(config.pipeline.supervision.main) as watch,
        first_stops_second_cancels(stop, (signal.SIGINT, signal.SIGTERM), watch),
    ):
        await table.play(stop)


def _configuration_of(players: Sequence[str], request: Request) -> Path:
    """Return the configuration of the first run that is named."""
    results = [
        each.value for each in request.overrides if isinstance(each, Override) and each.path[-1] == "results_dir"
    ]
    for player in players:
        folder = run_folder_of(found_below(player, results[-1] if results else "results"))
        if folder is not None:
            return folder / CONFIGURATION
    raise CommandError(
        f"--tournament {' '.join(players)}: which game is played? None of these is in a run's folder; name one, or the "
        "configuration of the game: run-pipeline CONFIG --tournament …"
    )
