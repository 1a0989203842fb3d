"""docs/statistics.md lists what the code writes: all of it, and nothing else."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from trainer_samples import CONTINUOUS, HYBRID, VECTOR, Reported, context_of, demonstrations, experience

from headrace.pipeline.diagnosis.measurements import PREFIX
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.design import design_of
from headrace.stages.trainer.factory import make_trainer

ROOT = Path(__file__).parents[1]
KINDS = (
    "Environment|Policy|Losses|Data|Diagnosis|Self-play|League|Evaluation|Epoch|Pipeline|Queue Depth|Producer Wait|Consumer Wait|"
    "Busy|Wait|Duration|Steps per Second|critic_pretrain|loss|action|Volley|Connect Four|Pursuit"
)
NAME = re.compile(rf"(?:{KINDS})/\S.*")
OF_TRAINERS = {"Policy", "Losses", "loss", "Environment", "Epoch"}
OTHERS = (
    {"grad_norm", "learning_rate", "entropy_cost", "Is Training", "Step", "Steps per Second/\0"}
    | {"Busy/\0", "Wait/policies", "Wait/policy \0", "Wait/decisions", "Wait/room"}
    | {"Duration/update \0", "Duration/collecting \0", "Duration/step"}
)
"""Statistics without a slash, or whose names are put together elsewhere."""
NO_STATISTICS = {"Environment/Lesson Number/", "Policy/Q1", "Policy/Q2", "Policy/Value", "Policy/Log Probability"}
"""Parts of names."""
ANYTHING = "\0"
"""Stands for what is filled in: in an f-string of the code, or `<…>` on the page."""


def documented() -> set[str]:
    """The names in the first columns of the page's tables."""
    cells = [
        line.split("|")[1]
        for line in (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8").splitlines()
        if "|" in line
    ]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(names) == len(set(names)), "each is explained once"
    return {re.sub(r"<[^>]*>", ANYTHING, name) for name in names} - {f"Environment/{ANYTHING}"}  # which all would fit


@cache
def written_in_the_sources() -> set[str]:
    """Names that stand in the sources, filled in or not; those of trainers only if they are not all to be filled in."""
    found = set()
    sources = (
        path.read_text(encoding="utf-8")
        for package in ("stages", "pipeline")
        for path in (ROOT / package).rglob("*.py")
    )
    for source in filter(NAME.search, sources):
        parts: set[int] = set()  # of texts that are filled in: they come after these, and are no names by themselves
        for node in ast.walk(ast.parse(source)):
            text = ""
            if isinstance(node, ast.JoinedStr):
                parts.update(map(id, node.values))
                text = as_text(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            kind, _, rest = text.partition("/")
            if NAME.fullmatch(text) and (kind not in OF_TRAINERS or rest.strip(f" {ANYTHING}")):
                found.add(text)
    return found - NO_STATISTICS


def measured_of_rows() -> set[str]:
    """Names of the measurements that `RowMeasurements` reports, which get their prefix when they are reported."""
    source = (ROOT / "pipeline" / "diagnosis" / "measurements.py").read_text(encoding="utf-8")
    names = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Yield(ast.Tuple([ast.Constant() | ast.JoinedStr() as name, *_])) | ast.Call(
                ast.Name("_known"), [ast.Constant() | ast.JoinedStr() as name, *_]
            ):
                names.add(PREFIX + as_text(name))
    return names


def asked_by_rules() -> set[str]:
    """Names of the measurements that the diagnosis' rules ask for."""
    source = (ROOT / "pipeline" / "diagnosis" / "rules.py").read_text(encoding="utf-8")
    texts = [as_text(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)]
    texts += [str(node.value) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return {text for text in texts if text.startswith(PREFIX) and text != PREFIX}


def as_text(node: ast.expr) -> str:
    """The text of a string or an f-string, with `ANYTHING` for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else ANYTHING for part in node.values)
    assert isinstance(node, ast.Constant)
    return str(node.value)


def fits(name: str, other: str) -> bool:
    """Whether two names can be the same, if each is filled in somehow."""
    return any(
        re.fullmatch(re.escape(one).replace(re.escape(ANYTHING), ".+"), two.replace(ANYTHING, "x"))
        for one, two in ((name, other), (other, name))
    )


def learned(kind: str, actions: Any, settings: dict[str, Any]) -> set[str]:
    """What a trainer reports, in as many updates as it takes to report everything."""
    spec, reported = BehaviorSpec("Test", (VECTOR,), actions, grouped=kind == "poca"), Reported()
    trainer = make_trainer(context_of(kind, spec, 3, reported, **settings))
    design = design_of(spec, trainer.context.settings)
    for seed in range(3):
        trainer.add(experience(spec, [9, 7, 13, 3], seed, design.memory_size, design.squashed))
        if trainer.ready():
            trainer.learn()
    return set(reported.values)


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> set[str]:
    """What all trainers report, with all reward signals."""
    spec = BehaviorSpec("Test", (VECTOR,), CONTINUOUS)
    demo = {"demo_path": str(demonstrations(tmp_path_factory.mktemp("expert") / "expert.stream", spec))}
    signals = {"reward_signals": {"extrinsic": {}, "curiosity": {}, "rnd": {}, "gail": {**demo, "use_vail": True}}}
    limited = {"hyperparameters": {"max_grad_norm": 0.5, "target_kl": 1.0, "regularization": {}}}
    pretrained = {"hyperparameters": {"batch_size_from_replay": 2, "critic_pretrain_steps": 30}}
    return set().union(
        learned("ppo", CONTINUOUS, {**signals, **limited, "behavioral_cloning": demo}),
        learned("poca", HYBRID, {}),
        learned("sac", CONTINUOUS, signals),
        learned("impala", HYBRID, pretrained),
        learned("bc", HYBRID, {"hyperparameters": {"held_out": 0.3}}),
    )


@pytest.mark.lengthy
def test_each_statistic_that_a_trainer_reports_is_explained(reported):
    page = documented()
    assert {name for name in reported if not any(fits(name, other) for other in page)} == set()


@pytest.mark.lengthy
def test_each_statistic_that_stands_in_the_sources_is_explained():
    page = documented()
    assert {name for name in written_in_the_sources() if not any(fits(name, other) for other in page)} == set()


def test_each_statistic_that_is_explained_can_be_written(reported):
    known = reported | written_in_the_sources() | measured_of_rows() | OTHERS
    epochs = {
        name for name in documented() if name.startswith("Epoch/")
    }  # made of a table, in headrace.pipeline.roles.learner
    assert {name for name in documented() - epochs if not any(fits(name, other) for other in known)} == set()


def test_each_measurement_of_the_rows_is_explained():
    page, measured = documented(), measured_of_rows()
    assert len(measured) > 20
    assert {name for name in measured if not any(fits(name, other) for other in page)} == set()


def test_the_rules_ask_for_measurements_that_exist():
    page, asked = documented(), asked_by_rules()
    assert len(asked) > 15
    assert {name for name in asked if not any(fits(name, other) for other in page)} == set()
