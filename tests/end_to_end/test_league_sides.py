"""Leagues of games in which each team has a behaviour of its own: two teams and three, at once and in turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import load_policy
from headrace.config import RunConfig
from headrace.pipeline.run import run
from headrace.stages.league.pool import Pool, read_member

DUEL = Path(__file__).with_name("duel_env.py")


def sides(count, learning="all", trainer="ppo", **league):
    """A league for each of several teams, whose learners are frozen every 200 steps."""
    sizes = {"ppo": {"batch_size": 32, "buffer_size": 128}, "sac": {"batch_size": 16, "buffer_init_steps": 300}}
    settings = {
        "trainer_type": trainer,
        "hyperparameters": sizes[trainer],
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": 800,
        "league": {
            "learning": learning,
            "rating": 0.2,
            "learners": {"main": {"matches": [{"match": "self"}, {"match": "pfsp"}], "freeze": {"at_most": 200}}},
            **league,
        },
    }
    return {
        "environment": {
            "kind": "gymnasium",
            "factory": "duel_env:Sides",
            "behavior": "Side0",
            "num_envs": 4,
            "options": {"teams": count},
        },
        "behaviors": {f"Side{team}": settings for team in range(count)},
        "pipeline": {"deterministic": True},
    }


def started(results, plain, resume=False):
    """The folder of a run that has ended, and its result."""
    settings = {"results_dir": str(results), "run_id": "run", "resume": resume}
    return results / "run", run(RunConfig.from_plain({**plain, "checkpoint_settings": settings}, DUEL))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "learning", "trainer"), [(3, "all", "ppo"), (3, "turns", "ppo"), (2, "turns", "sac")]
)
def test_each_side_of_a_league_plays_all_other_sides(tmp_path, count, learning, trainer):
    names = [f"Side{team}" for team in range(count)]
    folder, found = started(tmp_path, sides(count, learning, trainer))
    assert all(found.behaviors[f"{name}.main"].step >= 800 for name in names)
    report = json.loads((folder / "Side0" / "league.json").read_text())
    members = {each["label"]: each["behavior"] for each in report["members"]}
    assert all(list(members.values()).count(name) >= 4 for name in names)
    for learner in report["learners"]:
        own = learner["learner"].partition(".")[0]
        met = {label.partition(".")[0] for label, _ in learner["opponents"]}
        assert met == {*names} - {own}
    for name in names:
        assert sum(load_policy(folder, name, mixture=True).probabilities) == pytest.approx(1)
    pool = Pool(folder / "Side0" / "league")
    for member in pool.members:
        assert read_member(pool.folder, member).behavior_id.startswith(member.learner)
    longer = sides(count, learning, trainer)
    longer["behaviors"] = {name: {**each, "max_steps": 1000} for name, each in longer["behaviors"].items()}
    _, more = started(tmp_path, longer, resume=True)
    assert all(more.behaviors[f"{name}.main"].step >= 1000 for name in names)
    assert len(Pool(pool.folder).members) > len(pool.members)
