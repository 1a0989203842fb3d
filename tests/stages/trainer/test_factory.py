"""Which trainer `trainer_type` makes."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace

import pytest
from fakes import counting_spec

from headrace.config import BehaviorSettings
from headrace.stages.errors import LoadError
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import TrainerContext

CUSTOM = """
    from fakes import RememberingTrainer

    class Mine(RememberingTrainer):
        def __init__(self, context):
            super().__init__(context.behavior, context.settings.hyperparameters["batch"])

    class Greedy(RememberingTrainer):
        extra_columns = ("logits", "action_heads", "values")

    class Raises(RememberingTrainer):
        def __init__(self, context):
            raise OSError("no network")

    not_a_class = 5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A YAML's folder with a module of the user's own."""
    (tmp_path / "my_trainers.py").write_text(textwrap.dedent(CUSTOM))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_trainers", None)


def context(trainer_type, hyperparameters=None):
    settings = BehaviorSettings.model_validate(
        {"trainer_type": trainer_type, "hyperparameters": hyperparameters or {}, "max_steps": 100}
    )
    return TrainerContext("Walker", settings, counting_spec("Walker"))


def test_a_trainer_of_the_user_s_own_gets_its_settings(folder):
    made = make_trainer(replace(context("my_trainers:Mine", {"batch": 7}), folder=folder))
    assert type(made).__name__ == "Mine"
    assert made.rows_per_update == 7
    assert made.policy().behavior_id == "Walker"


@pytest.mark.parametrize("accelerated", [True, False])
def test_the_log_does_not_state_how_a_trainer_of_the_user_s_own_computes_its_gradients(accelerated, folder, caplog):
    caplog.set_level("INFO")
    make_trainer(replace(context("my_trainers:Mine", {"batch": 7}), folder=folder, accelerated=accelerated))
    assert not caplog.records


@pytest.mark.parametrize(
    ("trainer_type", "message"),
    [
        (
            "my_trainers:not_a_class",
            r"behaviors\.Walker\.trainer_type: my_trainers:not_a_class: expected a class derived from .*Trainer, got 5",
        ),
        ("headrace.stages.trainer.protocol:TrainerContext", r"expected a class derived from headrace\.Trainer"),
        (
            "my_trainers:Greedy",
            r"behaviors\.Walker\.trainer_type: my_trainers:Greedy requests the columns logits, values, which no policy "
            r"provides; the trainer must compute a baseline itself, .*; extra_columns can name action_heads; .*log_probs.* "
            r"always present",
        ),
        ("my_trainers:Missing", r"behaviors\.Walker\.trainer_type"),
        (
            "my_trainers:Raises",
            r"behaviors\.Walker\.trainer_type: creating my_trainers:Raises raised OSError: no network",
        ),
        ("no_such_module:Mine", r"behaviors\.Walker\.trainer_type"),
    ],
)
def test_an_invalid_trainer_class_is_refused_with_the_reason(trainer_type, message, folder):
    with pytest.raises(LoadError, match=message):
        make_trainer(replace(context(trainer_type), folder=folder))
