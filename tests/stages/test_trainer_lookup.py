"""Static properties of trainers, known without making one."""

from __future__ import annotations

import sys
import textwrap

import pytest

from headrace.config.trainers import TRAINERS
from headrace.stages.errors import LoadError
from headrace.stages.trainer.factory import find_trainer
from headrace.stages.trainer_lookup import trainer_kind

PATH = ("behaviors", "P")

MODULE = """
    from headrace.stages.trainer.protocol import Trainer
    from headrace.stages.trainer.sac import SACTrainer

    class Mine(Trainer):
        pass

    class Derived(SACTrainer):
        pass

    class OnPolicy(SACTrainer):
        off_policy = False

    class Asking(SACTrainer):
        extra_columns = ("action_heads",)

"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A YAML's folder with a module of the user's own."""
    (tmp_path / "kinds_of_trainers.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("kinds_of_trainers", None)


@pytest.mark.parametrize("trainer_type", TRAINERS)
def test_the_table_and_the_class_of_a_built_in_trainer_agree(trainer_type):
    entry, trainer = TRAINERS[trainer_type], find_trainer(trainer_type, None, PATH)
    assert trainer_kind(trainer_type, None, PATH) is entry
    assert (entry.squashed, entry.off_policy, entry.imitates) == (
        trainer.squashed,
        trainer.off_policy,
        trainer.imitates,
    )
    assert entry.extra_columns == trainer.extra_columns


@pytest.mark.parametrize(
    ("name", "squashed", "off_policy"),
    [("Mine", False, False), ("Derived", True, True), ("OnPolicy", True, False)],
)
def test_a_users_class_is_queried(folder, name, squashed, off_policy):
    kind = trainer_kind(f"kinds_of_trainers:{name}", folder, PATH)
    assert (kind.squashed, kind.off_policy, kind.imitates, kind.extra_columns) == (squashed, off_policy, False, ())


def test_a_class_of_the_users_own_may_ask_for_columns(folder):
    assert trainer_kind("kinds_of_trainers:Asking", folder, PATH).extra_columns == ("action_heads",)


def test_a_missing_class_is_named_with_its_behaviour(folder):
    with pytest.raises(LoadError, match=r"behaviors\.P\.trainer_type 'kinds_of_trainers:Mien'.*did you mean 'Mine'"):
        trainer_kind("kinds_of_trainers:Mien", folder, PATH)
