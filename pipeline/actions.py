"""The command's actions: train, validate, convert, export, plot, serve, and play a tournament.

Heavy imports wait until there is something to run, so `--help` and `--validate` answer immediately. `--validate`
imports the modules that the configuration names, and does a small trial run (`trial.py`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from headrace.config import ConfigError, Override, RunConfig, load_config
from headrace.config.listen import endpoint_of as check_endpoint
from headrace.config.listen import is_origin
from headrace.config.load import convert
from headrace.pipeline.command import ML_AGENTS, Request, contradictions, parse, program, read_request
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.common.output import close_output, complain, json_lines, own_stream, say, set_log_format
from headrace.pipeline.common.process import use_one_thread
from headrace.queues.disks import answered
from headrace.startup_context import absolute, shown

if TYPE_CHECKING:
    from headrace.pipeline.policies.tournament import TournamentTable
    from headrace.pipeline.reporting.console import ProgressSnapshot

TOURNAMENT = "tournament"
"""Default folder for a tournament's files, inside the results folder; `--run-id` selects a different one."""


def follow(arguments: Sequence[str] | None) -> int:
    """Execute a command line and return the exit status."""
    args = parse(arguments)
    set_log_format(args.log_format)
    if args.to_demo:
        return _to_demo(*args.to_demo)
    try:
        request = read_request(args)
        if (file := args.convert or request.config) is not None:
            with suppress(OSError):  # only to name a disk that hangs; the file's reader reports errors
                answered(file, lambda: Path(file).is_file() and Path(file).read_bytes())
        if args.export_onnx is not None:
            return _export_onnx(args.export_onnx, request)
        _check_companions(args)
        if args.plot:
            return _plot(args.plot, args.results_dir or "results", args.plot_file, args.x)
        if args.diagnose:
            return _diagnose(args.diagnose, args.results_dir or "results", args.format == "json", not args.no_env_check)
        if args.tournament:
            return _tournament(args.tournament, request)
        if args.view:
            return _view(args.view, args.results_dir or "results", args.monitor or "")
        if args.serve:
            return _serve(args)
        if args.convert is not None:
            return _convert(args, request)
        config = load_config(request.config, request.overrides, complete=not args.validate, **request.old_files)
        wrong = contradictions(request, config)
        if wrong:
            raise CommandError("\n".join(wrong))
        if args.tune is not None:
            return _tune(args, request, config, sys.argv[1:] if arguments is None else arguments)
    except CommandError as error:
        return _refuse(*str(error).splitlines())
    except ConfigError as error:
        complain(error)
        return 2
    _warn((*request.warnings, *config.warnings))
    if args.validate:
        return _validate(config, tried=not args.no_env_check)
    return train(config, details=args.verbose or program() == ML_AGENTS)


def _check_companions(args: Namespace) -> None:
    """Refuse options that only work with another option, if that option is missing."""
    if (args.x and not args.plot) or (args.format and not args.diagnose):
        raise CommandError("--x works only with --plot, and --format only with --diagnose")
    if args.convert is None and (args.id is not None or args.algo is not None):
        raise CommandError("--id and --algo work only with --convert: they choose the entry of rl-baselines3-zoo")


def _validate(config: RunConfig, *, tried: bool) -> int:
    """Print the pipeline, or the reasons why the run can't work; return the exit status."""
    from headrace.pipeline.command.description import describe
    from headrace.pipeline.main.preflight import all_names, missing_parts

    mistakes, plays = all_names(config), False
    if tried:
        from headrace.pipeline.trial import try_run, untried_environment

        plays = config.replay is None and not untried_environment(config)
        mistakes = list(dict.fromkeys([*missing_parts(config), *mistakes]))
        if not mistakes:
            mistakes, warnings = try_run(config)
            _warn(warnings)
    for mistake in mistakes:
        complain(mistake)
    if mistakes:
        return 2
    print(describe(config))
    if not config.checkpoint_settings.inference:
        from headrace.pipeline.diagnosis.report import judged

        _, findings, lines = judged(config, {name: {} for name in config.met_behaviors}, None, plays)
        _warn([str(finding) for finding in findings])
        for line in lines:
            print(line)
    return 0


def _tune(args: Namespace, request: Request, config: RunConfig, words: Sequence[str]) -> int:
    for package, extra in (("optuna", "tune"), ("matplotlib", "plot"), ("torch", "train")):
        if find_spec(package) is None:
            return _refuse(f'--tune needs the package {package}: `pip install "headrace[{extra}]"`')
    from headrace.pipeline.tuning import Study

    study = Study(args.tune, request, words, config)
    _warn((*request.warnings, *config.warnings))
    if not args.validate:
        return study.tune()
    status = _validate(config, tried=not args.no_env_check)
    if status == 0:
        print(study.describe())
    return status


def _refuse(*reasons: object) -> int:
    for reason in reasons:
        complain(f"{program()}: {reason}")
    return 2


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        complain(f"warning: {warning}")


def _say(level: str, text: str) -> None:
    """Write lines to standard error in the log's format."""
    complain(indent(text.rstrip(), f"[{level}] ", lambda line: True))


def _convert(args: Namespace, request: Request) -> int:
    """Print a converted file; return 1 if training differs because some settings have no counterpart."""
    if request.old_files and (args.id is not None or args.algo is not None):
        return _refuse("--id and --algo are for an rl-baselines3-zoo file, which has no lessons")
    converted = convert(args.convert, **request.old_files, env_id=args.id, algorithm=args.algo)
    _warn(converted.warnings)
    print(converted.text, end="")
    return 1 if converted.left_out else 0


def _export_onnx(run_folder: Path, request: Request) -> int:
    """Rewrite a run's .onnx files; return 1 if some could not be written."""
    from headrace.pipeline.common.errors import RunError
    from headrace.pipeline.policies.export import reexport
    from headrace.pipeline.reporting.console import configure_logging

    configure_logging(debug=False)
    try:
        written = reexport(absolute(run_folder), None if request.config is None else request.config.resolve().parent)
    except RunError as error:
        return _refuse(error)
    return 0 if written else 1


def _diagnose(names: Sequence[str], results: str, as_json: bool, probes: bool) -> int:
    """Print why runs do not learn."""
    from headrace.pipeline.common.errors import RunError, RunFolderError
    from headrace.pipeline.diagnosis.report import diagnose_runs
    from headrace.pipeline.run_folder.folder import find_run

    try:
        print(diagnose_runs([find_run(name, results, "--diagnose") for name in names], as_json, probes))
    except (RunFolderError, RunError) as error:
        return _refuse(f"--diagnose: {error}")
    return 0


def _plot(names: Sequence[str], results: str, target: Path | None, over: str | None) -> int:
    if find_spec("matplotlib") is None:
        return _refuse('--plot needs the package matplotlib: `pip install "headrace[plot]"`')
    from headrace.pipeline.reporting.league_files import draw_leagues
    from headrace.pipeline.reporting.pictures import PICTURE, draw_runs, read_runs
    from headrace.pipeline.run_folder.folder import find_run

    folders = [find_run(name, results, "--plot") for name in names]
    try:
        leagues = [chart for folder in folders for chart in draw_leagues(folder)]
    except (OSError, ValueError) as error:
        return _refuse(f"--plot: {error}")
    for chart in leagues:
        print(shown(chart))
    picture = draw_runs(read_runs(folders), "times" if over == "time" else "steps")
    if picture is None and leagues:
        return 0
    if picture is None:
        return _refuse(
            f"--plot: {', '.join(names)} has no curves yet; a run writes its first curves after summary_freq steps"
        )
    path = target or (folders[0] / PICTURE if len(folders) == 1 else Path(PICTURE))
    try:
        path.write_bytes(picture)
    except OSError as error:
        return _refuse(f"--plot: {path} can't be written: {error.strerror}; choose a different file with --plot-file")
    print(shown(path))
    return 0


def _tournament(players: Sequence[str], request: Request) -> int:
    """Play a tournament, print its table and write its files."""
    use_one_thread(os.environ)  # before NumPy is imported
    from headrace.pipeline.common.errors import RunError
    from headrace.pipeline.common.loop_watch import Interrupted
    from headrace.pipeline.policies.tournament import open_table, standings_table
    from headrace.pipeline.reporting.console import configure_logging

    configure_logging()
    try:
        table = open_table(players, request.config, request.overrides)
        asyncio.run(_play_until_stopped(table))
    except RunError as error:
        return _refuse(*str(error).splitlines())
    except Interrupted as error:  # code blocked the event loop
        _say("ERROR", f"{program()}: the tournament has failed: {error}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("ERROR", f"{program()}: ended immediately; no tournament results were written")
        return 130
    if not table.results:
        raise CommandError("--tournament: stopped before the first game ended")
    settings = table.config.checkpoint_settings
    overridden = [override.path for override in request.overrides if isinstance(override, Override)]
    named = ("checkpoint_settings", "run_id") in overridden
    folder = absolute(settings.results_dir) / (settings.run_id if named else TOURNAMENT)
    try:
        written = table.write(folder)  # first, because writing to standard output may fail
    except OSError as error:
        raise CommandError(f"--tournament: {folder} can't be written: {error.strerror}") from error
    say("\n".join([standings_table(table.standings()), *map(shown, written)]))
    return 0


async def _play_until_stopped(table: TournamentTable) -> None:
    from headrace.pipeline.command.signals import stopped_by_signals

    with stopped_by_signals(table.config.pipeline.supervision.main) as signals:
        signals.begin(lambda: bool(table.results))
        await table.play(signals.stop)


def _view(runs: Sequence[str], results: str, endpoint: str) -> int:
    from headrace.pipeline.monitor.view import view

    try:
        check_endpoint(endpoint)
    except ValueError as error:
        return _refuse(f"--monitor={endpoint}: {error}")
    view(runs, results, endpoint, lambda words: print(words, flush=True))
    return 0


def _serve(args: Namespace) -> int:
    use_one_thread(os.environ)  # before NumPy is imported
    from headrace.pipeline.command.signals import end_process
    from headrace.pipeline.reporting.console import configure_logging
    from headrace.pipeline.serving.server import ServingOptions, serve

    try:
        check_endpoint(args.listen or "")
    except ValueError as error:
        return _refuse(f"--listen={args.listen}: {error}")
    for origin in args.allow_origin:
        if not is_origin(origin):
            return _refuse(f"--allow-origin {origin}: expected scheme://host or scheme://host:port, and no path")
    configure_logging(bool(args.debug))
    seed = None if args.seed is None or args.seed < 0 else args.seed
    options = ServingOptions(
        args.serve, args.listen or "", bool(args.deterministic), seed, args.allow_origin, args.access_log
    )
    serve(options, say, end_process)
    return 0


def _to_demo(source: str, target: str) -> int:
    from headrace.pipeline.policies.demo_files import to_demo
    from headrace.stages.errors import StageError

    try:
        print(to_demo(source, target))
    except StageError as error:
        return _refuse(error)
    return 0


def train(config: RunConfig, details: bool = False, until: Callable[[ProgressSnapshot], bool] | None = None) -> int:
    """Run a configuration in a terminal and return the exit status.

    Args:
        config: the configuration to run.
        details: True to print each behaviour's settings.
        until: called about once a second; when it returns True, the run shuts down cleanly.
    """
    use_one_thread(os.environ)  # before NumPy is imported
    from headrace.pipeline.hosts.early_children import started_early
    from headrace.pipeline.hosts.process_cleanup import watch_this_process

    watch_this_process()
    with started_early(config):  # first, so the children import their modules while this process imports its modules
        return _run_to_status(config, details, until)


def _run_to_status(config: RunConfig, details: bool, until: Callable[[ProgressSnapshot], bool] | None) -> int:
    from headrace.pipeline.common.errors import RunError, RunFailed, RunFolderError
    from headrace.pipeline.common.loop_watch import Interrupted
    from headrace.pipeline.common.process import import_early
    from headrace.pipeline.hosts.early_children import imported_in_main
    from headrace.pipeline.reporting.console import configure_logging
    from headrace.pipeline.run_folder.checkpoint import CheckpointError

    if lines := json_lines():
        lines.fields["run_id"] = config.checkpoint_settings.run_id
    configure_logging(config.debug, details=details)
    try:
        from headrace.stages.user_calls import run_alone

        import_early(["headrace.pipeline.run", *imported_in_main(config)])
        return run_alone(_run_with_signals(config, until))
    except (RunError, RunFolderError, CheckpointError, ConfigError) as error:
        return _refuse(error)
    except RunFailed as error:
        if config.debug and error.detail:
            _say("ERROR", error.detail)
        _say("ERROR", f"{program()}: the run has failed: {error}")
        return 1
    except Interrupted as error:  # the code that blocked the event loop was not a stage
        _say("ERROR", f"{program()}: the run has failed: {error}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("ERROR", f"{program()}: ended immediately; everything since the last checkpoint is lost")
        return 130


async def _run_with_signals(config: RunConfig, until: Callable[[ProgressSnapshot], bool] | None) -> int:
    from headrace.pipeline.command.signals import end_process, stopped_by_signals
    from headrace.pipeline.reporting.console import Progress
    from headrace.pipeline.run import RunOptions, run_async

    limits = config.pipeline.supervision.main
    with stopped_by_signals(limits, lambda words: end_process(f"the run has failed: {words}", 1)) as signals:
        progress = Progress(enabled=sys.stderr.isatty() and json_lines() is None, detailed=config.debug)

        def end_where_asked(snapshot: ProgressSnapshot) -> None:
            if until is not None and until(snapshot):
                signals.stop.set()

        options = RunOptions(
            stop=signals.stop,
            progress=progress,
            watched=True,
            on_start=signals.begin,
            on_progress=end_where_asked,
        )
        result = await run_async(config, options)
    try:
        for name, behavior in result.behaviors.items():
            if behavior.export is not None:
                text = f"[INFO] {name}: {behavior.step} steps, policy in {shown(behavior.export)}"
                say(text, behavior=name, step=behavior.step)
        own_stream("stdout").flush()
    except OSError:  # already reported on the console; the run is complete anyway
        close_output()
    return 0
