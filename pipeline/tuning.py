"""`--tune SPACE`: a search for hyperparameters by Optuna, whose trials are runs of the ordinary command.

Optuna's journal in the study's folder is the study's only state: a second start continues the study, and machines that
share the folder share its trials. A trial runs its seeds one after another. The runs print their metric to the study,
by a statistics writer, and the study reports the mean over the seeds to Optuna's pruner.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field

from headrace.config import ConfigError, Mistake, Override, RunConfig, load_config
from headrace.config.errors import Finding, KeyPath, dotted, suggest
from headrace.config.fields import Flag, Float, Int, PlainMap, Settings, Text, as_tuple
from headrace.config.load import apply, convert, parse
from headrace.config.validation import check
from headrace.config.yaml_reader import read_file, read_text
from headrace.pipeline.command import Request
from headrace.pipeline.common.errors import CommandError, RunFolderError
from headrace.pipeline.common.output import complain, own_stream, say
from headrace.pipeline.common.process import let_child_find_us, start_python
from headrace.pipeline.reporting.statistics import StatisticsWriter, Summary
from headrace.pipeline.run_folder.lock import lock_folder
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.pipeline.run_folder.resuming import changed_settings
from headrace.process_tree import describe_status
from headrace.startup_context import absolute, shown, startup_context
from headrace.stop_requests import cleaned_up_by

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial
    from rich.table import Table

EVALUATED, TRAINED = "Evaluation/Cumulative Reward", "Environment/Cumulative Reward"
RETRIES = 3
"""How often a trial is repeated after its study was killed. The trial itself may be what kills the machine."""
PRUNED_S = 30.0
"""Seconds that a pruned run may take to save its last checkpoint."""
_NEW = timedelta(minutes=1)
"""Age below which a running trial may lack its worker's name, which is written just after the trial begins."""
_REPORT = "headrace-trial "
_ALIASES = {"asha": "successivehalving", "grid": "bruteforce", "none": "nop"}
"""Common names of Optuna's samplers and pruners. `BruteForceSampler` is a grid that needs no second search space."""


class SearchedKey(Settings):
    """The values of one key: `choices`, or all values from `low` to `high`."""

    low: Float | None = None
    high: Float | None = None
    step: Annotated[Float | None, Field(gt=0)] = None
    log: Flag = False
    choices: tuple[Any, ...] = ()

    def _mistakes(self) -> Iterator[Finding]:
        if self.choices and (self.low, self.high, self.step) != (None, None, None):
            yield Finding(("choices",), "expected either 'choices', or 'low', 'high' and 'step'")
        elif not self.choices and (self.low is None or self.high is None):
            yield Finding(("choices",), "expected 'choices', or 'low' and 'high'", involves=(("low",), ("high",)))
        elif self.low is not None and self.high is not None and self.low >= self.high:
            yield Finding(("high",), f"is {self.high:g}; expected more than 'low', which is {self.low:g}")
        if self.log and (self.step is not None or self.low is None or self.low <= 0):
            yield Finding(("log",), "expected a range that begins above 0 and has no 'step'")


class OptunaClass(Settings):
    """A sampler or pruner by Optuna's name, with its arguments; the short form is only the name."""

    use: Text
    with_: PlainMap = Field(default_factory=dict, alias="with")

    def make(self, module: Any, kind: str) -> Any:
        """Create the object, from a module of Optuna."""
        names = [name.removesuffix(kind) for name in module.__all__ if name.endswith(kind) and "Base" not in name]
        wanted = _ALIASES.get(self.use.lower(), self.use.removesuffix(kind)).lower()
        found = [name for name in names if name.lower() == wanted]
        if not found:
            raise ValueError(f"Optuna has no '{self.use}'{suggest(wanted, names)}; it has {', '.join(names)}")
        return getattr(module, f"{found[0]}{kind}")(**self.with_)


_Named = Annotated[OptunaClass, BeforeValidator(lambda value: {"use": value} if isinstance(value, str) else value)]
_Seeds = Annotated[tuple[Annotated[Int, Field(ge=0)], ...], BeforeValidator(as_tuple), Field(min_length=1)]


class StudySettings(Settings):
    """The content of a search-space file (docs/tuning.md)."""

    trials: Annotated[Int, Field(ge=1)]
    parallel: Annotated[Int, Field(ge=1)] = 1
    seeds: _Seeds = (0,)
    sampler: _Named = OptunaClass(use="TPE")
    pruner: _Named = OptunaClass(use="Median")
    metric: Text | None = None
    behavior: Text | None = None
    direction: Literal["maximize", "minimize"] = "maximize"
    ray: PlainMap | None = None
    space: Annotated[dict[str, SearchedKey], Field(min_length=1)]


class TrialFailed(Exception):
    """A trial has no result; Optuna stores the reason."""

    def __init__(self, trial: optuna.Trial, reason: str) -> None:
        super().__init__(reason)
        trial.set_user_attr("failure", reason)


class TrialReports(StatisticsWriter):
    """Prints the metric of one behaviour for the study, in a trial's run."""

    def __init__(self, metric: str, behavior: str | None) -> None:
        self._metric, self._behavior = metric, behavior

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Print the metric, if the summary has it."""
        if self._metric in summaries and category == (self._behavior or category):
            say(_REPORT + json.dumps([step, summaries[self._metric].value]))


def run_trial(words: Sequence[str], folder: str) -> Iterator[tuple[int, float] | str]:
    """Run the ordinary command in a folder; yield the step and value of each report, and the reason if the run fails.

    Closing the iterator ends the run as Ctrl-C does.
    """
    from headrace.pipeline.hosts.process_cleanup import watch_this_process

    watch_this_process()
    variables = dict(startup_context().variables)
    let_child_find_us(variables)
    line = ["-P", "-c", "import sys; from headrace.pipeline.cli import main; sys.exit(main())", *words]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    said: deque[str] = deque(maxlen=20)
    with start_python(line, variables, cwd=folder, **pipes) as run, cleaned_up_by(run.kill_all):
        try:
            for text in run.stdout or ():
                said.append(text.decode(errors="replace").rstrip())
                if said[-1].startswith(_REPORT):
                    step, value = json.loads(said.pop().removeprefix(_REPORT))
                    yield step, value
            if status := run.wait():
                ended = f"signal {-status}" if status < 0 else f"exit status {describe_status(status)}"
                reasons = [line.partition("run-pipeline: ")[2] for line in said if "run-pipeline: " in line]
                yield f"{ended}: {'; '.join(reasons) or ''.join([*said][-1:])}"
        finally:
            if run.poll() is None:
                run.terminate()
                try:
                    run.communicate(timeout=PRUNED_S)
                except subprocess.TimeoutExpired:
                    run.kill_all()


def _run_on_ray(options: Mapping[str, Any], words: Sequence[str], folder: str) -> Iterator[tuple[int, float] | str]:
    """Run a trial's command as a task on Ray."""
    import ray

    reports = ray.remote(max_retries=0, num_returns="streaming", **options)(run_trial).remote(words, folder)
    try:
        for report in reports:
            yield ray.get(report)
    except ray.exceptions.RayError as error:
        yield " ".join(str(error).split())
    finally:
        ray.cancel(reports)


class Study:
    """A study: the file with its search space, the configuration that it varies, and Optuna's study.

    Args:
        path: the file.
        request: the command line.
        config: the configuration, without values from the search space.

    Raises:
        ConfigError: if the file has mistakes, or names keys or values that the configuration can't have.
        CommandError: if this command can't tune.
    """

    def __init__(self, path: Path, request: Request, config: RunConfig) -> None:
        self._path, self._request, self._config = path, request, config
        run = config.checkpoint_settings
        wrong = {name: getattr(run, name) for name in ("resume", "force", "inference")} | {"monitor": config.monitor}
        if clashes := [name for name, value in wrong.items() if value]:
            raise CommandError(
                f"--tune: a study has no {' and no '.join(clashes)}: the same command continues it, a new --run-id "
                "begins another one, and --view shows the runs of its trials"
            )
        if str(request.config) == "-":
            raise CommandError("--tune: standard input can be read only once; give a file")
        _need("optuna", "tune")
        self._document = read_file(path)
        if not isinstance(self._document.data, dict):
            raise ConfigError([self._mistake((), "expected a map with 'trials' and 'space'")])
        if self._document.mistakes:
            raise ConfigError(self._document.mistakes)
        self.settings = check(StudySettings, self._document.data, self._mistake)
        self.folder = absolute(run.results_dir) / run.run_id
        self._metric = self.settings.metric or (TRAINED if config.evaluation is None else EVALUATED)
        self._whole: set[str] = set()
        self._show: Callable[[], object] = lambda: None
        for find in (self._wrong_keys, lambda: map(self._wrong_value, self.settings.space), self._wrong_classes):
            if mistakes := [mistake for found in find() for mistake in found]:
                raise ConfigError(list(dict.fromkeys(mistakes)))

    def describe(self) -> str:
        """Return the lines that `--validate` prints."""
        settings = self.settings
        lines = [f"  {settings.direction} {self._metric} of {self._behavior or 'the behaviour'}"]
        for key, values in settings.space.items():
            between = ", ".join(map(str, values.choices)) or f"{values.low:g} to {values.high:g}"
            step = f", in steps of {values.step:g}" if values.step else ""
            lines.append(f"  {key}: {between}{', whole numbers' * (key in self._whole)}{step}{', log' * values.log}")
        parts = f"sampler {settings.sampler.use}, pruner {settings.pruner.use}, {settings.parallel} at a time"
        seeds = ", ".join(map(str, settings.seeds))
        return "\n".join([f"study in {shown(self.folder)}: {settings.trials} trials, seeds {seeds}, {parts}", *lines])

    # What is checked before the first trial.

    def _mistake(self, path: KeyPath, message: str) -> Mistake:
        return Mistake(str(self._path), self._document.line_of(path), dotted(path), message)

    def _wrong_keys(self) -> Iterator[Sequence[Mistake]]:
        names = [name for name, settings in self._config.behaviors.items() if settings.learns]
        self._behavior = self.settings.behavior or (names[0] if len(names) == 1 else None)
        if names and self._behavior not in names:
            yield [self._mistake(("behavior",), f"expected one of {', '.join(names)}, whose metric counts")]
        self._paths: dict[str, KeyPath] = {}
        for key in self.settings.space:
            overrides, wrong = parse([f"{key}=0"])
            path = overrides[0].path if overrides else ()
            if wrong:
                message = "expected a path of keys, as --set takes it"
            elif path[0] in ("checkpoint_settings", "monitor") or path[:2] == ("env_settings", "seed"):
                message = "the study sets this key itself"
            elif double := [name for name, other in self._paths.items() if other[: len(path)] == path[: len(other)]]:
                message = f"sets the same as '{double[0]}'; keep only one of them"
            else:
                self._paths[key] = path
                continue
            yield [self._mistake(("space", key), message)]

    def _load(self, values: Mapping[str, Any]) -> RunConfig:
        """Load the configuration with values for some keys; mistakes name the key's line in the search space."""
        overrides = [
            Override(f"{self._path}:{self._document.line_of(('space', key))}", self._paths[key], value)
            for key, value in values.items()
        ]
        request = self._request
        return load_config(request.config, (*request.overrides, *overrides), **request.old_files)

    def _refused(self, **values: Any) -> Sequence[Mistake]:
        try:
            self._load(values)
        except ConfigError as error:
            return error.mistakes
        return ()

    def _wrong_value(self, key: str) -> Sequence[Mistake]:
        """Return the mistakes of a key whose values the configuration can't have, whatever the other keys' values."""
        entry, draw = self.settings.space[key], random.Random(0)
        ends = entry.choices or (entry.low, entry.high)
        for value in ends:
            if refused := self._refused(**{key: value}):
                others = {name: one.choices or (one.low, one.high) for name, one in self.settings.space.items()}
                tries = [{**{name: draw.choice(each) for name, each in others.items()}, key: value} for _ in range(10)]
                if all(self._refused(**each) for each in tries):
                    return refused
        with suppress(ConfigError):
            if all(self._load({key: value}) == self._config for value in ends):
                return [self._mistake(("space", key), "changes nothing in this configuration")]
        if entry.low is not None and entry.high is not None:
            numbers = (entry.low, entry.high, entry.step or 1.0)
            halves = (entry.low + 0.5, entry.high - 0.5)
            if all(map(float.is_integer, numbers)) and all(self._refused(**{key: half}) for half in halves):
                self._whole.add(key)
        return ()

    def _wrong_classes(self) -> Iterator[Sequence[Mistake]]:
        """Create the sampler and the pruner, and let them try two trials in memory."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

        def tried(trial: optuna.Trial) -> float:
            self._suggest(trial)
            trial.report(0.0, 1)
            return float(trial.should_prune())

        self._made: dict[str, Any] = {}
        for name, module in (("sampler", optuna.samplers), ("pruner", optuna.pruners)):
            try:
                for trials in (2, 0):  # again, without the memory of the trials
                    self._made[name] = getattr(self.settings, name).make(module, name.capitalize())
                    optuna.create_study(**{name: self._made[name]}).optimize(tried, trials)
            except (TypeError, ValueError, ImportError, RuntimeError) as error:
                yield [self._mistake((name,), " ".join(str(error).split()))]

    def _suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, entry in self.settings.space.items():
            if entry.low is None or entry.high is None:  # a list or a map is text for Optuna
                plain = [json.dumps(one) if isinstance(one, list | dict) else one for one in entry.choices]
                values[key] = entry.choices[plain.index(trial.suggest_categorical(key, plain))]
            elif key in self._whole:
                ends = int(entry.low), int(entry.high)
                values[key] = trial.suggest_int(key, *ends, step=int(entry.step or 1), log=entry.log)
            else:
                values[key] = trial.suggest_float(key, entry.low, entry.high, step=entry.step, log=entry.log)
        return values

    # The search.

    def tune(self, words: Sequence[str]) -> int:
        """Run the trials that the study lacks with the words of this command line; return the exit status."""
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
        from rich.console import Console
        from rich.live import Live

        if (self.folder / CONFIGURATION).exists():
            raise CommandError(f"--tune: {shown(self.folder)} is the folder of a run; choose a different --run-id")
        at = next(index for index, word in enumerate(words) if word.startswith("--tune"))
        self._words = [*words[:at], *words[at + (2 if words[at] == "--tune" else 1) :]]
        self._worker = uuid.uuid4().hex
        worker, journal = self.folder / "workers" / self._worker, str(self.folder / "journal.log")
        worker.mkdir(parents=True)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, worker, ignore_errors=True)
            stack.callback(lock_folder(worker).release)
            lock = JournalFileOpenLock(journal)  # the default one needs rights on Windows
            storage = optuna.storages.JournalStorage(JournalFileBackend(journal, lock))
            self._study = optuna.create_study(
                storage=storage,
                study_name="study",
                direction=self.settings.direction,
                load_if_exists=True,
                **self._made,
            )
            self._check_origin()
            self._run: Callable[[Sequence[str], str], Iterator[Any]] = run_trial
            if (options := self.settings.ray) is not None:
                _need("ray", "ray")
                from headrace.pipeline.hosts.ray.hosts import RaySession

                stack.callback(RaySession(self._config).close)
                self._run = lambda *task: _run_on_ray(options, *task)
            stack.enter_context(cleaned_up_by(lambda: complain("The same command continues the study.")))
            if sys.stderr.isatty():
                console = Console(file=own_stream("stderr"))
                live = stack.enter_context(Live(get_renderable=self._rows, console=console, auto_refresh=False))
                stack.enter_context(cleaned_up_by(live.stop))  # because it has hidden the cursor
                self._show = live.refresh
            self._retry_orphans()
            while (left := self.settings.trials - self._started()) > 0:
                jobs = min(self.settings.parallel, left)
                self._study.optimize(self._objective, left, n_jobs=jobs, catch=(TrialFailed,), callbacks=[self._ended])
                if not self._study.get_trials(False, (optuna.trial.TrialState.WAITING,)):
                    break  # a grid has no more values
        return self._conclude()

    def _check_origin(self) -> None:
        """Refuse to mix trials of different configurations or search spaces in one study."""
        keys = {"seeds", "metric", "behavior", "direction", "space"}
        ours = json.loads(self.settings.model_dump_json(include=keys))
        before = self._study.user_attrs
        if "configuration" not in before:
            self._study.set_user_attr("space", ours)
            self._study.set_user_attr("configuration", yaml.safe_dump(self._config.to_plain()))
            return
        changed = [name for name in ours if before["space"].get(name) != ours[name]]
        if what := changed_settings(before["configuration"], self._config) or ", ".join(changed):
            raise CommandError(
                f"--tune: {shown(self.folder)} has trials with other settings ({what}); choose a new --run-id"
            )

    def _started(self) -> int:
        """Return the number of trials that count: all that have begun, except those that a kill interrupted."""
        trials = self._study.get_trials(deepcopy=False)
        return sum(trial.state.name != "WAITING" and not trial.user_attrs.get("interrupted") for trial in trials)

    def _retry_orphans(self) -> None:
        """Mark the running trials of killed workers as failed, and queue their values again."""
        import optuna

        for trial in self._study.get_trials(False, (optuna.trial.TrialState.RUNNING,)):
            worker, begun = trial.user_attrs.get("worker"), trial.datetime_start or datetime.now()
            if datetime.now() - begun < _NEW if worker is None else _is_alive(self.folder / "workers" / worker):
                continue
            retry = trial.user_attrs.get("retry", 0) + 1
            with suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):  # another worker has been faster
                orphan = optuna.Trial(self._study, trial._trial_id)
                orphan.set_user_attr("failure", "its study was killed")
                orphan.set_user_attr("interrupted", retry <= RETRIES)
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                if retry <= RETRIES:
                    self._study.enqueue_trial(trial.params, user_attrs={"retry": retry})

    def _objective(self, trial: optuna.Trial) -> float:
        import optuna

        trial.set_user_attr("worker", self._worker)
        values = self._suggest(trial)
        trial.set_user_attr("values", values)
        try:
            config = self._load(values)
        except ConfigError as error:
            raise TrialFailed(trial, f"these values don't fit together: {error}") from error
        settings, evaluation = config.behavior_settings(self._behavior or ""), config.evaluation
        evaluated = evaluation is not None and self._metric.startswith("Evaluation/")
        every = evaluation.every if evaluated and evaluation is not None else settings.summary_freq
        planned = max(1, round(settings.max_steps / every))
        finals: list[float] = []
        for number, seed in enumerate(self.settings.seeds):
            last, at = None, 0
            words = self._arguments(trial.number, seed, values, config)
            with closing(self._run(words, startup_context().folder)) as reports:  # type: ignore[type-var]
                for report in reports:
                    if isinstance(report, str):
                        raise TrialFailed(trial, f"seed {seed}: {report}")
                    step, last = report
                    if at < (at := min(planned, max(1, round(step / every)))):
                        trial.report(fmean([*finals, last]), number * planned + at)
                        self._show()
                        if number * planned + at < planned * len(self.settings.seeds) and trial.should_prune():
                            raise optuna.TrialPruned
            if last is None:
                raise TrialFailed(trial, f"seed {seed}: the run wrote no '{self._metric}' (docs/statistics.md)")
            finals.append(last)
        return fmean(finals)

    def _arguments(self, number: int, seed: int, values: Mapping[str, Any], config: RunConfig) -> list[str]:
        """Return the ordinary command's arguments for one run of a trial."""
        reports = {
            "use": f"{__name__}:{TrialReports.__name__}",
            "with": {"metric": self._metric, "behavior": self._behavior},
        }
        ours = {
            "checkpoint_settings.copy_to": None,
            "checkpoint_settings.results_dir": str(self.folder),
            "checkpoint_settings.run_id": f"trial-{number}-seed-{seed}",
            "env_settings.seed": seed,
            "pipeline.statistics_writers": [*config.to_plain()["pipeline"]["statistics_writers"], reports],
        }
        if self.settings.parallel > 1 and config.env_settings.env_path is not None:
            ours["env_settings.base_port"] = 0  # any free ports
        sets = [word for key, value in {**values, **ours}.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        end = self._words.index("--env-args") if "--env-args" in self._words else len(self._words)
        return [*self._words[:end], *sets, *self._words[end:]]

    # What the user sees.

    def _ended(self, study: optuna.Study, trial: FrozenTrial) -> None:
        say(f"[INFO] trial {trial.number}: {_outcome(trial)}; {_values(trial)}")
        with suppress(ValueError):  # no trial is complete
            if study.best_trial.number == trial.number:
                self._write_best(trial)
        self._retry_orphans()
        self._show()
        if self._started() >= self.settings.trials:
            study.stop()

    def _write_best(self, trial: FrozenTrial) -> None:
        """Write the configuration with the trial's values, in the current format."""
        from headrace.config.legacy import as_yaml

        source = self._request.config
        text = "default_settings: {}" if source is None else convert(source, **self._request.old_files).text
        given, _ = parse(self._request.overrides)
        kept = [override for override in given if override.path[0] != "checkpoint_settings"]
        found = [Override("", self._paths[key], value) for key, value in trial.user_attrs["values"].items()]
        data, _, _ = apply(read_text(text, "").data or {}, [*kept, *found])
        head = f"# Trial {trial.number} of {self.folder.name}: {self._metric} {trial.value:.6g}, mean over the seeds "
        whole = f"{head}{', '.join(map(str, self.settings.seeds))}.\n{as_yaml(data, {})}"
        new = self.folder / f"best.yaml.{self._worker}"
        new.write_text(whole, encoding="utf-8")
        os.replace(new, self.folder / "best.yaml")

    def _rows(self) -> Table:
        from rich.table import Table

        by_state: dict[str, list[FrozenTrial]] = {"COMPLETE": [], "RUNNING": []}
        for trial in self._study.get_trials(False):
            by_state.setdefault(trial.state.name, []).append(trial)
        best = sorted(by_state["COMPLETE"], key=lambda trial: trial.value or 0.0)
        best = best[-5:][::-1] if self.settings.direction == "maximize" else best[:5]
        title = f"{self.folder.name}: trial {self._started()} of {self.settings.trials}, the best and the running ones"
        table = Table("trial", "result", "values", title=title)
        for trial in (*best, *by_state["RUNNING"]):
            table.add_row(str(trial.number), _outcome(trial), _values(trial))
        return table

    def _conclude(self) -> int:
        """Print the result, draw the pictures and return the exit status."""
        states = [trial.state.name for trial in self._study.get_trials(False)]
        say(f"[INFO] {', '.join(f'{states.count(name)} {name}' for name in dict.fromkeys(states))}")
        if "COMPLETE" not in states:
            complain("[ERROR] run-pipeline: no trial was completed; the lines above say why")
            return 1
        best = self._study.best_trial
        self._write_best(best)  # again, in case a kill came first
        say(f"[INFO] best: trial {best.number}: {_outcome(best)}; {_values(best)}\n{shown(self.folder / 'best.yaml')}")
        if find_spec("matplotlib") is None:
            say('[INFO] no pictures, because the package matplotlib is missing: `pip install "headrace[plot]"`')
            return 0
        import matplotlib as mpl
        from optuna.importance import PedAnovaImportanceEvaluator
        from optuna.visualization import matplotlib as drawn

        mpl.use("Agg")
        importance: Any = partial(drawn.plot_param_importances, evaluator=PedAnovaImportanceEvaluator())
        history: Any = drawn.plot_optimization_history
        for name, draw in (("history.png", history), ("importance.png", importance)):
            try:
                draw(self._study).figure.savefig(self.folder / name, bbox_inches="tight")
                say(shown(self.folder / name))
            except (ValueError, RuntimeError) as error:
                say(f"[INFO] no {name}: {error}")
        return 0


def _need(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise CommandError(f'--tune needs the package {package}: `pip install "headrace[{extra}]"`')


def _is_alive(worker: Path) -> bool:
    """Return True if a process holds a worker's lock."""
    try:
        lock_folder(worker).release()
    except RunFolderError:
        return True
    except OSError:  # it was removed
        pass
    return False


def _outcome(trial: FrozenTrial) -> str:
    if trial.state.name == "FAIL":
        return f"failed: {trial.user_attrs.get('failure', 'unknown')}"
    if trial.state.name == "COMPLETE":
        return f"{trial.value:.6g}"
    reported = [*trial.intermediate_values.values()]
    return trial.state.name.lower() + (f" at {reported[-1]:.6g} after {len(reported)} reports" if reported else "")


def _values(trial: FrozenTrial) -> str:
    """Return the trial's values for people, with short keys where these are unique."""
    short = [key.rpartition(".")[2] for key in trial.params]
    names = (last if short.count(last) == 1 else key for last, key in zip(short, trial.params, strict=True))
    named = zip(names, trial.params.values(), strict=True)
    return ", ".join(f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in named)
