"""`--tune SPACE`: a search for hyperparameters by Optuna, whose trials are runs of the ordinary command.

Optuna's journal in the study's folder is the study's only state: a second start continues the study, and machines that
share the folder share its trials. A trial runs its seeds one after another. The runs print their metric to the study,
by a statistics writer, and the study reports the mean over the seeds to Optuna's pruner.
"""

from __future__ import annotations

import json
import subprocess
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

import matplotlib as mpl
import optuna
import yaml
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from pydantic import BeforeValidator, Field

from headrace.config import ConfigError, Mistake, Override, RunConfig, load_config
from headrace.config.errors import KeyPath, dotted, suggest
from headrace.config.fields import Int, PlainMap, Settings, Text, as_tuple
from headrace.config.load import parse
from headrace.config.validation import check
from headrace.config.yaml_reader import read_file
from headrace.pipeline.command import Request
from headrace.pipeline.common.errors import CommandError, RunFolderError
from headrace.pipeline.common.output import complain, say
from headrace.pipeline.common.process import start_python
from headrace.pipeline.hosts.process_cleanup import watch_this_process
from headrace.pipeline.hosts.spawn import child_environment
from headrace.pipeline.reporting.trackers import TrialWriter
from headrace.pipeline.run_folder.lock import lock_folder
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.pipeline.run_folder.resuming import changed_settings
from headrace.process_tree import describe_status
from headrace.queues.files import write_atomic
from headrace.startup_context import absolute, shown, startup_context
from headrace.stop_requests import cleaned_up_by

RETRIES = 3
"""How often a trial is repeated after its study was killed. The trial itself may be what kills the machine."""
PRUNED_S = 30.0
"""Seconds that a pruned run may take to save its last checkpoint."""
_ALIASES = {"ASHA": "SuccessiveHalving", "grid": "BruteForce", "none": "Nop", "random": "Random"}
"""Common names of Optuna's samplers and pruners. `BruteForceSampler` is a grid that needs no second search space."""


class OptunaClass(Settings):
    """A sampler or pruner by Optuna's name, with its arguments; the short form is only the name."""

    use: Text
    with_: PlainMap = Field(default_factory=dict, alias="with")

    def make(self, name: str, wrong: Callable[[KeyPath, object], ConfigError]) -> Any:
        """Create the `sampler` or `pruner`."""
        module, wanted = getattr(optuna, f"{name}s"), f"{_ALIASES.get(self.use, self.use)}{name.capitalize()}"
        if wanted not in module.__all__:
            raise wrong((name,), f"Optuna has no {wanted}{suggest(wanted, module.__all__)}")
        try:
            return getattr(module, wanted)(**self.with_)
        except (TypeError, ValueError, ImportError) as error:
            raise wrong((name,), error) from error


_Named = Annotated[OptunaClass, BeforeValidator(lambda value: {"use": value} if isinstance(value, str) else value)]


class StudySettings(Settings):
    """The content of a search-space file (docs/tuning.md)."""

    trials: Annotated[Int, Field(ge=1)]
    parallel: Annotated[Int, Field(ge=1)] = 1
    seeds: Annotated[tuple[Annotated[Int, Field(ge=0)], ...], BeforeValidator(as_tuple), Field(min_length=1)] = (0,)
    sampler: _Named = OptunaClass(use="TPE")
    pruner: _Named = OptunaClass(use="Median")
    metric: Text | None = None
    behavior: Text | None = None
    direction: Literal["maximize", "minimize"] = "maximize"
    ray: PlainMap | None = None
    space: Annotated[dict[str, PlainMap], Field(min_length=1)]
    """Per key: the arguments of Optuna's suggestion: `choices`, or `low`, `high`, `step` and `log`."""


def run_trial(words: Sequence[str], folder: str) -> Iterator[float | str]:
    """Run the ordinary command in a folder; yield the value of each report, and the reason if the run fails.

    Closing the iterator ends the run as Ctrl-C does.
    """
    watch_this_process()
    line = ["-P", "-c", "import sys; from headrace.pipeline.cli import main; sys.exit(main())", *words]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    said: deque[str] = deque(maxlen=3)
    with start_python(line, child_environment(), cwd=folder, **pipes) as run, cleaned_up_by(run.kill_all):
        try:
            for text in run.stdout or ():
                said.append(text.decode(errors="replace").rstrip())
                if said[-1].startswith(TrialWriter.PREFIX):
                    yield float(said.pop().removeprefix(TrialWriter.PREFIX))
            if status := run.wait():
                yield f"exit status {describe_status(status)}: {' '.join(said)}"
        finally:
            run.terminate()
            with suppress(subprocess.TimeoutExpired):
                run.communicate(timeout=PRUNED_S)
            run.kill_all()


def _run_on_ray(options: Mapping[str, Any], words: Sequence[str], folder: str) -> Iterator[float | str]:
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
    """A study: its search space, the command line whose trials it runs, and Optuna's study.

    Args:
        path: the file with the search space.
        request: the command line.
        words: the command line's arguments.
        config: the configuration, without values from the search space.

    Raises:
        ConfigError: if the file has mistakes, or names keys or values that the configuration can't have.
        CommandError: if this command can't tune.
    """

    def __init__(self, path: Path, request: Request, words: Sequence[str], config: RunConfig) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        run = config.checkpoint_settings
        clashes = [name for name in ("resume", "force", "inference") if getattr(run, name)]
        clashes += ["monitor"] * (config.monitor is not None) + ["standard input"] * (str(request.config) == "-")
        if clashes:
            raise CommandError(
                f"--tune: a study has no {' and no '.join(clashes)}: the same command continues it, a new --run-id "
                "begins another one, and --view shows the runs of its trials"
            )
        self._file, self._request, self._config = path, request, config
        self.folder, self._worker = absolute(run.results_dir) / run.run_id, uuid.uuid4().hex
        at = next(index for index, word in enumerate(words) if word.startswith("--tune"))
        self._words = [*words[:at], *words[at + (2 if words[at] == "--tune" else 1) :]]
        self._document = document = read_file(path)
        if document.mistakes:
            raise ConfigError(document.mistakes)
        self.settings = check(StudySettings, document.data if isinstance(document.data, dict) else {}, self._mistake)
        self._seeds = ", ".join(map(str, self.settings.seeds))
        source = "Environment" if config.evaluation is None else "Evaluation"
        self._metric = self.settings.metric or f"{source}/Cumulative Reward"
        if self.settings.ray is not None and find_spec("ray") is None:
            raise CommandError('--tune: the key ray needs the package ray: `pip install "headrace[ray]"`')
        names = [name for name, settings in config.behaviors.items() if settings.learns]
        self._behavior = self.settings.behavior or (names[0] if len(names) == 1 else None)
        if names and self._behavior not in names:
            raise self._wrong(("behavior",), f"expected one of {', '.join(names)}, whose metric counts")
        self._paths = {key: self._path(key) for key in self.settings.space}
        self._suggestions = {key: self._suggestion(key) for key in self._paths}
        self._check_draws()
        self._heads = [name.rjust(9) for name in ("ended", "trial", "state", "value", "±", "best", "took", "left")]
        for key, (_, values) in self._suggestions.items():
            self._heads.append(key.rpartition(".")[2].rjust(max(9, *map(len, map(_cell, values.get("choices", "-"))))))

    def describe(self) -> str:
        """Return the lines that `--validate` prints."""
        aim = f"{self.settings.direction} {self._metric} of {self._behavior or 'the behaviour'}"
        lines = [f"study in {shown(self.folder)}: {self.settings.trials} trials, seeds {self._seeds}, {aim}"]
        for key, (kind, values) in self._suggestions.items():
            lines.append(f"  {key}: {kind}, {', '.join(f'{name} {value}' for name, value in values.items())}")
        return "\n".join(lines)

    # What is checked before the first trial.

    def _mistake(self, path: KeyPath, message: object) -> Mistake:
        return Mistake(str(self._file), self._document.line_of(path), dotted(path), " ".join(str(message).split()))

    def _wrong(self, path: KeyPath, message: object) -> ConfigError:
        return ConfigError([self._mistake(path, message)])

    def _path(self, key: str) -> KeyPath:
        overrides, _ = parse([f"{key}=0"])
        path = overrides[0].path if overrides else ()
        if not path or path[0] in ("checkpoint_settings", "monitor") or path[:2] == ("env_settings", "seed"):
            message = "expected a path of keys, as --set takes it, and none that the study sets itself"
            raise self._wrong(("space", key), message)
        return path

    def _load(self, values: Mapping[str, Any]) -> RunConfig:
        """Load the configuration with values for some keys; mistakes name the key's line in the search space."""
        lines = {key: f"{self._file}:{self._document.line_of(('space', key))}" for key in values}
        overrides = [Override(lines[key], self._paths[key], value) for key, value in values.items()]
        return load_config(self._request.config, (*self._request.overrides, *overrides), **self._request.old_files)

    def _refused(self, values: Mapping[str, Any]) -> set[Mistake]:
        try:
            self._load(values)
        except ConfigError as error:
            return {*error.mistakes}
        return set()

    def _suggestion(self, key: str) -> tuple[str, Mapping[str, Any]]:
        """Return the type of Optuna's suggestion for a key: whole numbers where the configuration accepts no halves."""
        values = self.settings.space[key]
        if "choices" in values:
            return "categorical", values
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float) and name != "log"}
        halves = ({key: number + 0.5} for name, number in numbers.items() if name != "step")
        if all(float(number).is_integer() for number in numbers.values()) and all(map(self._refused, halves)):
            return "int", {**values, **{name: int(number) for name, number in numbers.items()}}
        return "float", values

    def _check_draws(self) -> None:
        """Let Optuna draw trials in memory; refuse a choice, or an end of a range, that does not fit in any of them."""
        draws: list[dict[str, Any]] = []
        mistakes: set[Mistake] = set()

        def draw(trial: optuna.Trial) -> float:
            draws.append(self._suggest(trial))
            trial.report(0.0, 1)
            return float(trial.should_prune())

        try:
            self._open_study().optimize(draw, 10)
        except (TypeError, ValueError, ImportError, RuntimeError) as error:
            raise self._wrong((), error) from error
        for key, (_, values) in self._suggestions.items():
            for end in values.get("choices") or (values["low"], values["high"]):
                mistakes |= set.intersection(*(self._refused({**drawn, key: end}) for drawn in draws))
        if mistakes:
            raise ConfigError(sorted(mistakes, key=str))

    def _open_study(self, **options: Any) -> optuna.Study:
        """Create or load a study with the sampler and the pruner of the file."""
        made = {name: getattr(self.settings, name).make(name, self._wrong) for name in ("sampler", "pruner")}
        return optuna.create_study(**made, direction=self.settings.direction, **options)

    def _suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        for key, (kind, values) in self._suggestions.items():
            try:
                getattr(trial, f"suggest_{kind}")(key, **values)
            except (TypeError, ValueError) as error:
                raise self._wrong(("space", key), error) from error
        return trial.params

    # The search.

    def tune(self) -> int:
        """Run the trials that the study lacks; return the exit status."""
        if (self.folder / CONFIGURATION).exists():
            raise CommandError(f"--tune: {shown(self.folder)} is the folder of a run; choose a different --run-id")
        worker, journal = self.folder / "workers" / self._worker, str(self.folder / "journal.log")
        worker.mkdir(parents=True)
        with ExitStack() as stack:
            stack.enter_context(lock_folder(worker))
            lock = JournalFileOpenLock(journal)  # the default one needs rights on Windows
            storage = optuna.storages.JournalStorage(JournalFileBackend(journal, lock))
            study = self._open_study(storage=storage, study_name="study", load_if_exists=True)
            # Trials of different configurations or search spaces don't mix.
            space = self.settings.model_dump_json(include={"seeds", "metric", "behavior", "direction", "space"})
            before = study.user_attrs.get("origin") or [space, yaml.safe_dump(self._config.to_plain())]
            study.set_user_attr("origin", before)
            if changed := changed_settings(before[1], self._config) or "space" * (before[0] != space):
                raise CommandError(
                    f"--tune: {shown(self.folder)} has trials with other settings ({changed}); choose a new --run-id"
                )
            if self.settings.ray is not None:
                from headrace.pipeline.hosts.ray.hosts import RaySession

                stack.callback(RaySession(self._config).close)
            stack.enter_context(cleaned_up_by(lambda: complain("The same command continues the study.")))
            self._retry_orphans(study)
            say(" ".join(self._heads))
            while (left := self._left(study)) > 0:
                study.optimize(self._objective, left, n_jobs=min(self.settings.parallel, left), callbacks=[self._ended])
                if not study.get_trials(False, (TrialState.WAITING,)):
                    break  # a grid has no more values
        return self._conclude(study)

    def _left(self, study: optuna.Study) -> int:
        """Return how many trials are to begin: those that no worker has begun, and repeats that wait."""
        trials = study.get_trials(deepcopy=False)
        begun = sum("retry" not in trial.user_attrs for trial in trials)
        return self.settings.trials - begun + sum(trial.state.name == "WAITING" for trial in trials)

    def _retry_orphans(self, study: optuna.Study) -> None:
        """Mark the running trials of killed workers as failed, and queue their values again."""
        for trial in study.get_trials(False, (TrialState.RUNNING,)):
            if (worker := trial.user_attrs.get("worker")) is None:  # it names itself just after the trial begins
                continue
            with suppress(RunFolderError):  # the worker lives
                lock_folder(self.folder / "workers" / worker).release()
                retry = trial.user_attrs.get("retry", 0) + 1
                with suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):  # another worker has been faster
                    study.tell(trial.number, state=TrialState.FAIL)
                    if retry <= RETRIES:
                        study.enqueue_trial(trial.params, user_attrs={"retry": retry})

    def _objective(self, trial: optuna.Trial) -> float:
        trial.set_user_attr("worker", self._worker)
        values, reported = self._suggest(trial), 0
        finals: list[float] = []
        writers = self._config.to_plain()["pipeline"]["statistics_writers"]
        what = {"metric": self._metric, "behavior": self._behavior}
        writers += [{"use": f"{TrialWriter.__module__}:{TrialWriter.__name__}", "with": what}]
        end = self._words.index("--env-args") if "--env-args" in self._words else len(self._words)
        run = run_trial if self.settings.ray is None else partial(_run_on_ray, self.settings.ray)
        for seed in self.settings.seeds:
            last: float | str = f"the run wrote no '{self._metric}' (docs/statistics.md)"
            ours = {
                "checkpoint_settings.copy_to": None,
                "checkpoint_settings.results_dir": str(self.folder),
                "checkpoint_settings.run_id": f"trial-{trial.number}-seed-{seed}",
                "env_settings.seed": seed,
                "pipeline.statistics_writers": writers,
            }
            if self.settings.parallel > 1 and self._config.env_settings.env_path is not None:
                ours["env_settings.base_port"] = 0  # any free ports
            sets = [f"{key}={json.dumps(value)}" for key, value in {**values, **ours}.items()]
            words = [*self._words[:end], *(word for one in sets for word in ("--set", one)), *self._words[end:]]
            with closing(run(words, startup_context().folder)) as results:  # type: ignore[type-var]
                for last in results:
                    if not isinstance(last, str):
                        reported += 1
                        trial.report(fmean([*finals, last]), reported)
                        if trial.should_prune():
                            raise optuna.TrialPruned
            if isinstance(last, str):
                trial.set_user_attr("failure", f"seed {seed}: {last}")
                return float("nan")  # for Optuna, a failure
            finals.append(last)
        trial.set_user_attr("spread", stdev(finals) if len(finals) > 1 else None)
        return fmean(finals)

    # What the user sees.

    def _ended(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Print the trial's row: the study's trials of all machines count for `ended`, `best` and `left`."""
        self._retry_orphans(study)
        trials, waiting, count = study.get_trials(deepcopy=False), self._left(study), self.settings.trials
        running = sum(other.state is TrialState.RUNNING for other in trials)
        missing = max(0, waiting) + running
        spent = [other.duration or timedelta() for other in trials if other.value is not None]
        left = sum(spent, timedelta()) / max(1, len(spent)) * missing / max(self.settings.parallel, running + 1)
        best = study.best_value if any(other.state is TrialState.COMPLETE for other in trials) else None
        values = (trial.value, trial.user_attrs.get("spread"), best, trial.duration, left if spent else None)
        cells = (f"{count - missing}/{count}", trial.number, trial.state.name.lower(), *values, *trial.params.values())
        row = (_cell(cell).rjust(len(head)) for cell, head in zip(cells, self._heads, strict=True))
        say(" ".join((*row, trial.user_attrs.get("failure", ""))).rstrip(), trial=trial.number, value=trial.value)
        if trial.value == best is not None:
            self._write_best(study)
        if waiting <= 0:
            study.stop()

    def _write_best(self, study: optuna.Study) -> None:
        """Write the configuration of the best trial."""
        best = study.best_trial
        plain = self._load(best.params).to_plain()
        del plain["checkpoint_settings"]
        head = f"# Trial {best.number} of {self.folder.name}: {self._metric} {best.value:.6g}, seeds {self._seeds}"
        write_atomic(self.folder / "best.yaml", f"{head}\n{yaml.safe_dump(plain, sort_keys=False)}".encode())

    def _conclude(self, study: optuna.Study) -> int:
        """Print the result, draw the pictures and return the exit status."""
        if not study.get_trials(False, (TrialState.COMPLETE,)):
            complain("[ERROR] run-pipeline: no trial was completed; the lines above say why")
            return 1
        self._write_best(study)  # again, in case a kill came first
        say(f"[INFO] best: trial {study.best_trial.number}: {shown(self.folder / 'best.yaml')}")
        mpl.use("Agg")
        plots: Any = optuna.visualization.matplotlib
        importance = partial(plots.plot_param_importances, evaluator=optuna.importance.PedAnovaImportanceEvaluator())
        for name, draw in (("history.png", plots.plot_optimization_history), ("importance.png", importance)):
            with suppress(ValueError, RuntimeError):  # there are too few trials
                draw(study).figure.savefig(self.folder / name, bbox_inches="tight")
        return 0


def _cell(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{(seconds := round(value.total_seconds())) // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
