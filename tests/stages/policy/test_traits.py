"""What is known of a kind of trainer without making one."""

from __future__ import annotations

import sys
import textwrap

import pytest

from stages.errors import LoadError
from stages.policy.traits import TrainerTraits, traits_of
from stages.trainer.bc import BCTrainer
from stages.trainer.poca import POCATrainer
from stages.trainer.ppo import PPOTrainer
from stages.trainer.sac import SACTrainer

MODULE = """
    from stages.trainer import Trainer
    from stages.trainer.sac import SACTrainer

    class Mine(Trainer):
        pass

    class Derived(SACTrainer):
        pass

    class OnPolicy(SACTrainer):
        off_policy = False
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A YAML's folder with a module of the user's own."""
    (tmp_path / "kinds_of_trainers.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("kinds_of_trainers", None)


@pytest.mark.parametrize(
    ("kind", "trainer"), [("ppo", PPOTrainer), ("poca", POCATrainer), ("sac", SACTrainer), ("bc", BCTrainer)]
)
def test_of_a_built_in_trainer_it_is_what_its_class_says(kind, trainer):
    assert traits_of(kind, "P") == TrainerTraits(trainer.squashed, trainer.off_policy)


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("Mine", TrainerTraits(squashed=False, off_policy=False)),
        ("Derived", TrainerTraits(squashed=True, off_policy=True)),
        ("OnPolicy", TrainerTraits(squashed=True, off_policy=False)),
    ],
)
def test_a_class_of_the_users_own_is_asked(folder, name, traits):
    assert traits_of(f"kinds_of_trainers:{name}", "P", folder) == traits


def test_a_class_that_is_not_there_is_named_with_its_behaviour(folder):
    with pytest.raises(LoadError, match=r"behaviors\.P\.trainer_type 'kinds_of_trainers:Mien'.*did you mean 'Mine'"):
        traits_of("kinds_of_trainers:Mien", "P", folder)
