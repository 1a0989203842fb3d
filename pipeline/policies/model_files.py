"""Model files: finds the file that a *model reference* names, and reads its policy. No run is needed.

- `results/first`: the newest policy of the run's behaviour, or of each behaviour if the run has several
- `results/first/Ball`: the newest policy of one behaviour
- `results/first@best`: the best policy by evaluations; `@last` is the newest one, `@500000` the one saved at that step
- `results/first@member-3`: in a run with a league, a member of its pool. Without `@member-…`, the reference names the
  league's first learner; `results/first/Ball.exploiter` names another learner
- `results/first/Ball/Ball-500000.pt`, `Ball.onnx`, `checkpoint.pt`: a file, which is an export, an `.onnx` model, an
  ML-Agents checkpoint with an MLP, or the file of a pool member

The second half of this module reads the leagues in a run's folder: the learners, the pool members and the mixture of
members.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from headrace.config import NetworkSettings
from headrace.config.brains import kind_of
from headrace.config.errors import suggest
from headrace.config.paths import file_name
from headrace.config.plain_data import parse_json
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.export import NEWEST, SUFFIX, exports_by_step, is_export, read_export, step_in_name
from headrace.pipeline.policies.ml_agents import MLAgentsCheckpoint
from headrace.pipeline.reporting.league_files import REPORT
from headrace.pipeline.run_folder.carrying import describe_archive
from headrace.pipeline.run_folder.folder import read_configuration
from headrace.pipeline.run_folder.names import FOLDERS, behavior_folder
from headrace.queues.disks import answered
from headrace.queues.files import matching, read_file
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError, describe_error, error_summary
from headrace.stages.league.pool import FOLDER, Member, read_index, read_member
from headrace.stages.league.pool import SUFFIX as MEMBER
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.memories import nothing_recalled
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.protocol import ActingPolicy
from headrace.startup_context import absolute, shown

BEST, LAST = "best", "last"
_SUFFIXES = (".pt", SUFFIX)
_NAMED = (*_SUFFIXES, MEMBER)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The file of one behaviour's policy, before it is read."""

    path: Path
    behavior: str
    """Behaviour name according to the file's location; a name in the file takes precedence."""


@dataclass(frozen=True, slots=True)
class Model:
    """A policy read from a file."""

    path: Path
    design: PolicyDesign
    """The policy's spec and network settings. For an `.onnx` file, only the spec is meaningful."""
    update: PolicyUpdate
    """The policy's weights and step; weights are empty for an `.onnx` file, which the acting policy reads itself."""

    @property
    def spec(self) -> BehaviorSpec:
        """The policy's observations and actions."""
        return self.design.spec

    def make_policy(self) -> ActingPolicy:
        """Return a policy that is ready to act.

        Raises:
            RunError: if the network can't be built, or the file is an `.onnx` model and onnxruntime is missing.
        """
        try:
            policy = acting_policy(self.path, self.design)
            policy.load(self.update)
        except StageError as error:
            raise RunError(str(error)) from error
        return policy


def find_models(reference: str, folder: Path | None = None) -> list[ModelFile]:
    """Return the files that a model reference names: a single file, or one per behaviour for a run's folder.

    Args:
        reference: see the top of this module.
        folder: the YAML's folder, where a relative path is looked up first.

    Raises:
        RunError: if there is no file; the message lists what exists.
    """
    return [ModelFile(choose(), behavior) for behavior, choose in _candidates(reference, folder)]


def find_model(reference: str, behavior: str | None = None, folder: Path | None = None) -> ModelFile:
    """Return the single file that a model reference names for a behaviour.

    Args:
        reference: see the top of this module.
        behavior: name of the behaviour that will use the file. If a run has several behaviours, the file with this name
            is used; a file with a different name is used only if it is the only file.
        folder: as for `find_models`.

    Raises:
        RunError: if there is no file, or there are several and none has the behaviour's name.
    """
    candidates = dict(_candidates(reference, folder, behavior))
    of_league = [name for name in candidates if behavior and name.rpartition(".")[0] == behavior]
    names = candidates if len(candidates) == 1 else [file_name(behavior or ""), behavior or "", *of_league]
    wanted = next((name for name in names if name in candidates), None)
    if wanted is not None:
        return ModelFile(candidates[wanted](), wanted)
    lacking = f", and no {behavior}{suggest(behavior, candidates)}" if behavior else ""
    raise RunError(
        f"{reference} holds {len(candidates)} behaviours ({', '.join(candidates)}){lacking}: name the folder of one, "
        f"such as {Path(reference.partition('@')[0]) / next(iter(candidates))}"
    )


def read_model(
    file: ModelFile, spec: BehaviorSpec | None = None, network_folder: Path | None = None, version: int = 0
) -> Model:
    """Read the policy in a model file.

    Args:
        file: the file.
        spec: spec of the environment in which the policy will play; None to use the file's own spec. An ML-Agents
            checkpoint, and an `.onnx` model from another program, do not name their observations.
        network_folder: folder in which `network_settings.network` may name a module.
        version: version number of the returned policy.

    Raises:
        RunError: if the file can't be read, or the policy does not fit the environment.
    """
    path = file.path
    if answered(path, path.exists) and not answered(path, path.is_file):  # opening a named pipe could block forever
        raise RunError(f"{path} is not a regular file")
    try:
        if path.suffix == MEMBER:
            return _read_member(path, spec, network_folder, version)
        if is_onnx(path):
            from headrace.stages.policy.onnx.runtime import stated_notes

            stated, step = stated_notes(path, file.behavior) if spec is None else (spec, 0)
            return Model(path, PolicyDesign(stated, NetworkSettings()), _unread(file, version, step))
        if not is_export(path):
            theirs = MLAgentsCheckpoint(path)
            design = theirs.design(file.behavior)
            if spec is not None:
                design = replace(design, spec=spec)
                theirs.check(design)
            return Model(path, design, replace(theirs.acting_policy(design.spec.name), version=version))
        export = read_export(path, network_folder)
        design = export.design
        if spec is not None:
            check_spec(design.spec, spec)
            design = replace(design, spec=spec)
        return Model(path, design, replace(export.update, version=version))
    except StageError as error:
        text = str(error)
        raise RunError(text if str(path) in text else f"{path}: {text}") from error
    except (OSError, ValueError) as error:
        raise RunError(str(error)) from error


def check_decides(path: Path, policy: ActingPolicy, spec: BehaviorSpec) -> None:
    """Check that a policy works, by running it once on zeros.

    Raises:
        RunError: if the policy fails; the message names the file.
    """
    try:
        zeros = tuple(np.zeros((1, *observation.shape), observation.dtype) for observation in spec.observations)
        policy.act(zeros, None, np.random.default_rng(0), False, nothing_recalled(policy, spec.actions, 1))
    except Exception as error:
        raise RunError(f"{path} can't choose actions: {describe_error(error)}") from error


def read_policy_update(path: Path, behavior: str) -> PolicyUpdate:
    """Return the policy to send to actors; an `.onnx` model is sent without weights, because actors read the file.

    Raises:
        RunError: if the file can't be read.
    """
    file = ModelFile(path, behavior)
    if is_onnx(path):
        return _unread(file, 0)
    return replace(read_model(file).update, behavior_id=behavior)  # a league learner's file has the learner's name


def acting_policy(path: Path, design: PolicyDesign, device: str = "cpu") -> ActingPolicy:
    """Return an acting policy for a file; if it is a `.pt` file, the caller must still load the weights.

    Args:
        path: the file.
        design: the policy's design.
        device: the torch device that runs the network; an `.onnx` model runs on the CPU.

    Raises:
        StageError: if an `.onnx` model does not fit the design's spec.
    """
    if not is_onnx(path):
        return make_policy(design, device)
    from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy

    return OnnxPolicy(path, design)


def newest_policy(run_folder: Path, behavior: str) -> Path:
    """Return a run's newest policy for a behaviour: a `.pt` or `.onnx` file.

    A `.pt` file takes precedence over an `.onnx` file of the same step. An ML-Agents `.pt` file is played only if there
    is no `.onnx` file, because Headrace can read only its MLPs.

    Raises:
        RunError: if there is no policy.
    """
    behavior = learners_in(run_folder).get(behavior, [behavior])[0]
    folder = behavior_folder(run_folder, behavior)
    newest, last = folder / NEWEST, run_folder / f"{folder.name}{SUFFIX}"
    exports, models = exports_by_step(folder, behavior), exports_by_step(folder, behavior, SUFFIX)
    found = (
        path for path in reversed(exports) if is_export(path) or not (bool(models) or answered(last, last.is_file))
    )
    policy = next(found, None)  # older files need not be read
    if policy is not None and (not models or step_in_name(policy) >= step_in_name(models[-1])):
        return policy
    if models:
        return models[-1]
    if answered(newest, newest.is_file) and (is_export(newest) or not answered(last, last.is_file)):
        return newest
    if answered(last, last.is_file):
        return last
    old = last.with_suffix(".nn")
    hint = f" ({old.name} is in the format of Barracuda, which only Unity's packages 1.0 to 2.x read)"
    raise RunError(
        f"{folder} holds no trained policy ({behavior}-<step>.pt or .onnx), and there is no {last}"
        f"{hint if old.is_file() else ''}: train the run first, give its name with --run-id, or name a model as the "
        "behavior's init_path"
    )


def behaviors_in(run_folder: Path) -> list[str]:
    """Return the names of the folders of all behaviours that have policies in a run's folder."""
    if _holds_policies(run_folder, answered(run_folder, run_folder.resolve).name):
        return []  # `run_folder` is one behaviour's folder
    inner = [path for path in matching(run_folder, "*/") if path.name not in FOLDERS]
    folders = {path.name for path in inner if _holds_policies(path, path.name)}
    return sorted(folders | {path.stem for path in matching(run_folder, f"*{SUFFIX}")})


def check_spec(theirs: BehaviorSpec, ours: BehaviorSpec, whose: str = "the environment now has") -> None:
    """Check that a policy was trained with these observations and actions.

    Action masks may differ, because they don't affect the network: a policy cloned from a `.demo`, which always has
    masks, can play without them.

    Args:
        theirs: the policy's spec.
        ours: the required spec.
        whose: text before `ours` in the message.

    Raises:
        StageError: if the specs differ.
    """
    if not theirs.sees_like(ours):
        raise StageError(f"it was trained with different observations: {theirs.seen}; {whose} {ours.seen}")
    if replace(theirs.actions, masked=ours.actions.masked) != ours.actions:
        raise StageError(f"it was trained with different actions: {theirs.actions}; {whose} {ours.actions}")


def is_onnx(path: str | Path) -> bool:
    """Return True if a path has the suffix of an `.onnx` model."""
    return Path(path).suffix == SUFFIX


def _read_member(path: Path, spec: BehaviorSpec | None, network_folder: Path | None, version: int) -> Model:
    """Read a pool member: the member's weights, with the design of its learner's newest policy."""
    member, of = next((each for each in members_in(path.parent) if each.path == path.name), None), path.parent.parent
    if member is None:
        raise RunError(f"{path} is not a member of the pool in its folder")
    run_folder, learner = of.parent, member.learner if member.behavior else f"{of.name}.{member.learner}"
    like = read_model(ModelFile(newest_policy(run_folder, learner), learner), spec, network_folder)
    if not like.update.layout:
        raise RunError(
            f"{path} contains only weights, and {like.path} does not describe their network; use the .pt file instead"
        )
    update = read_member(path.parent, member)
    return Model(path, like.design, replace(update, version=version, behavior_id=like.spec.name))


def _candidates(reference: str, folder: Path | None, wanted: str | None = None) -> list[tuple[str, Callable[[], Path]]]:
    """Return a reference's behaviours, each with a function that finds its file. A league contributes one learner."""
    path, choice = _split(reference, folder)
    if answered(path, path.is_file):
        if path.suffix not in _NAMED:
            what = f"; {archive}" if (archive := describe_archive(path)) else ""
            raise RunError(f"{path} is not a model: expected a .pt or .onnx file, or the folder of a run{what}")
        if choice:
            raise RunError(f"{reference}: @{choice} chooses from a run folder, but {path} is a file")
        return [(_behavior_of(path), lambda: path)]
    if not answered(path, path.is_dir):
        raise RunError(f"there is no file or folder {shown(path)}{_hint(path)}")
    names, resolved = behaviors_in(path), answered(path, path.resolve)
    run_folder, folder_name = path if names else resolved.parent, resolved.name
    _, leagues = leagues_at(path)
    if not names and folder_name in leagues:
        names = leagues[folder_name]
    elif not names and _holds_policies(path, folder_name):
        names = [folder_name]
    elif not names:
        raise RunError(
            f"{path} holds no policies: expected a .pt or .onnx file, the folder of a run (results/<run-id>), or that "
            "of a behaviour in it"
        )
    for of, learners in leagues.items():
        if wanted not in learners and wanted is not None and wanted.startswith(f"{of}."):
            raise RunError(
                f"{reference}: the league of {of} has no learner {wanted}; expected {', '.join(learners)}"
                f"{suggest(wanted, learners)}"
            )
        learner = wanted if wanted in learners else learners[0]
        others = {*map(file_name, learners)} - {file_name(learner)}
        names = [name for name in names if name not in others]
    return [(name, partial(_chosen, run_folder, name, choice)) for name in names]


def _split(reference: str, folder: Path | None) -> tuple[Path, str]:
    """Return a reference's path (relative to the YAML if the file exists there) and the choice after `@`."""
    whole = beside(reference, folder)
    if answered(whole, whole.exists) or "@" not in reference:
        return whole, ""
    path, _, choice = reference.rpartition("@")
    if choice not in (BEST, LAST) and not choice.isdecimal() and member_number(choice) is None:
        raise RunError(
            f"{reference}: unknown choice '@{choice}'; expected @{BEST}, @{LAST}, a step such as @500000, or a member "
            "of a league's pool such as @member-3"
        )
    return beside(path, folder), choice


def beside(path: str, folder: Path | None) -> Path:
    """Return an absolute path; a relative path is looked up first in the YAML's folder, if there is one."""
    candidate = None if folder is None else folder / path
    return candidate if candidate is not None and answered(candidate, candidate.exists) else absolute(path)


def _chosen(run_folder: Path, behavior: str, choice: str) -> Path:
    if choice in ("", LAST):
        return newest_policy(run_folder, behavior)
    folder = behavior_folder(run_folder, behavior)
    if (number := member_number(choice)) is not None:
        return member_file(run_folder, folder.name, number)
    name = folder.name
    paths = [folder / f"{name}-{choice}{suffix}" for suffix in _SUFFIXES]
    files = [path for path in paths if answered(path, path.is_file)]
    if files:
        return files[0]
    available = sorted({step_in_name(path) for path in _exports(folder, behavior)})
    steps = f"available: @{', @'.join(map(str, available))}" if available else "no policy there has a step in its name"
    why = f"; only a run with an evaluation section keeps {BEST}" if choice == BEST else ""
    raise RunError(f"{folder} holds no policy {name}-{choice}.pt or {SUFFIX}: {steps}{why}")


def _holds_policies(folder: Path, behavior: str) -> bool:
    return answered(folder, (folder / NEWEST).is_file) or any(_exports(folder, behavior))


def _exports(folder: Path, behavior: str) -> Sequence[Path]:
    return [path for suffix in _SUFFIXES for path in exports_by_step(folder, behavior, suffix)]


def _behavior_of(path: Path) -> str:
    """Return the behaviour's name according to a path: `Ball` for `Ball/Ball-500.onnx`, else the file's stem."""
    parent = answered(path, path.resolve).parent.name
    return parent if path.name == NEWEST or path.stem.startswith(f"{parent}-") else path.stem


def _unread(file: ModelFile, version: int, step: int = 0) -> PolicyUpdate:
    return PolicyUpdate(file.behavior, version, np.empty(0, np.float32), (), step or step_in_name(file.path))


def _hint(path: Path) -> str:
    usual = Path("results") / shown(path)
    if absolute(usual).exists():
        return f"; did you mean '{usual}'?"
    near = sorted({entry.name for entry in path.parent.glob("*")} - {path.name}) if path.parent.is_dir() else []
    return suggest(path.name, near)


_MEMBER = re.compile(r"member-(\d+)")


def learners_in(run_folder: Path) -> dict[str, list[str]]:
    """Return the names of each league's learners, keyed by behaviour; the first learner is the main one."""
    leagues: dict[str, list[str]] = {}
    if matching(run_folder, f"*/{FOLDER}"):
        behaviors = read_configuration(run_folder).get("behaviors")
        for name, settings in behaviors.items() if isinstance(behaviors, Mapping) else ():
            league = settings.get("league") if isinstance(settings, Mapping) else None
            if isinstance(league, Mapping) and league.get("of"):
                leagues.setdefault(str(league["of"]), []).append(str(name))
    return leagues


def leagues_at(path: Path) -> tuple[Path, dict[str, list[str]]]:
    """Return a run's folder and the learners of its leagues; for the folder of a league's behaviour, only that league.

    Args:
        path: the run's folder, or the folder of the behaviour in it.
    """
    if leagues := learners_in(path):
        return path, leagues
    run_folder, name = (resolved := answered(path, path.resolve)).parent, resolved.name
    return run_folder, {of: learners for of, learners in learners_in(run_folder).items() if of == name}


def league_of(run_folder: Path, name: str) -> str | None:
    """Return the behaviour whose league a name refers to; None if it has no league.

    The name may be that of the behaviour, of a learner, or of the folder of either one.
    """
    leagues = learners_in(run_folder).items()
    return next((of for of, learners in leagues if name in {of, *learners, *map(file_name, (of, *learners))}), None)


def member_number(choice: str) -> int | None:
    """Return the number in a name like `member-3`; None for other names."""
    match = _MEMBER.fullmatch(choice)
    return None if match is None else int(match[1])


def pool_folder(run_folder: Path) -> Path:
    """Return the pool folder that a run's leagues share. It is in the folder of the first behaviour with a league."""
    return behavior_folder(run_folder, next(iter(learners_in(run_folder)))) / FOLDER


def members_in(folder: Path) -> list[Member]:
    """Return all members of a pool, for every behaviour with a league.

    Raises:
        RunError: if the pool's index can't be read.
    """
    try:
        return read_index(folder)
    except (StageError, ValueError) as error:
        raise RunError(f"{error}; restore the original file, or resume the run, which writes a new one") from error


def member_file(run_folder: Path, behavior: str, number: int) -> Path:
    """Return the file of a pool member.

    Args:
        run_folder: the run's folder.
        behavior: the name of the league's behaviour or of one of its learners.
        number: the member's number.

    Raises:
        RunError: if the league or the member does not exist, or the member has no file in the pool.
    """
    of = league_of(run_folder, behavior)
    if of is None:
        raise RunError(f"@member-{number}: {run_folder / behavior} does not belong to a league, so it has no pool")
    folder = pool_folder(run_folder)
    members = members_in(folder)
    if number >= len(members):
        available = f"available: member-0 to member-{len(members) - 1}" if members else "the pool is empty"
        raise RunError(f"{folder} holds no member-{number}; {available}")
    member = members[number]
    if member.behavior not in ("", of):
        raise RunError(
            f"member-{number} of {folder} plays {member.behavior}, not {of}; choose a member that plays {of}"
        )
    if member.use:
        raise RunError(
            f"member-{number} of {folder} is {member.name}, which was not trained there; use {member.use} instead"
        )
    return folder / member.path


def mixture_in(path: Path, behavior: str | None = None) -> tuple[str, list[tuple[str, float]]]:
    """Return a league's behaviour and, for each member of its mixture, a model reference and the member's probability.

    Args:
        path: a run's folder, or the folder of the league's behaviour in it.
        behavior: the league's behaviour, if the run has several leagues.

    Raises:
        RunError: if there is no league, its mixture is missing or empty, or a member can't be loaded.
    """
    run_folder, leagues = leagues_at(path)
    chosen = [of for of in leagues if behavior in (None, of)]
    if len(chosen) != 1:
        reason = f"its leagues are for {', '.join(leagues)}" if leagues else "no behaviour there has a league"
        raise RunError(f"{path} has no mixture{f' for {behavior}' if behavior else ''}: {reason}")
    folder = pool_folder(run_folder)
    report, members = folder.parent / REPORT, members_in(folder)
    try:
        mixture = ((int(number), float(share)) for number, share in parse_json(read_file(report))["mixture"])
        shares = {
            number: share
            for number, share in mixture
            if 0 <= share <= 1 and members[number].behavior in ("", chosen[0])
        }
        uses = {number: members[number].use or str(member_file(run_folder, chosen[0], number)) for number in shares}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{report}, which holds the league's mixture, can't be read: {error_summary(error)}") from error
    if not shares:
        raise RunError(f"{report}: the mixture has no members yet")
    for number, use in uses.items():
        if kind_of(use) != "model":
            raise RunError(
                f"member-{number} of the mixture is {members[number].name} ({use}), which is not a loadable policy"
            )
    return chosen[0], [(uses[number], share) for number, share in shares.items()]
