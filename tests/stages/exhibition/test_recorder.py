"""The recorder: a file for each game, from its first picture to its last, of as many games as are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from headrace.config import RunConfig
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.errors import StageError
from headrace.stages.exhibition.film import make_shown_group
from headrace.stages.exhibition.recorder import GameRecorder, RecordedGroup


@dataclass
class Film:
    """A film in memory."""

    fps: float
    path: Path = Path("film")
    pictures: list[np.ndarray] = field(default_factory=list)
    closed: bool = False

    def add(self, image):
        assert not self.closed
        self.pictures.append(image)

    def close(self):
        self.closed = True


def filmed(environment, most=9):
    """A group whose first games are filmed, and the films."""
    films: list[Film] = []

    def open_film(fps):
        if len(films) == most:
            return None
        films.append(Film(fps))
        return films[-1]

    return RecordedGroup(*make_shown_group(request(environment), raw=True), open_film), films


def request(environment):
    name = environment["id"].partition("-")[0]
    return EnvironmentRequest(RunConfig.from_plain({"environment": environment, "behaviors": {name: {}}}))


def play(group, until):
    """Play at random until a number of games have ended, or episodes."""
    result, over = group.reset(1), 0
    random = np.random.default_rng(2)
    while over < until:
        actions = {}
        for name, steps in result.steps.items():
            count, spec = len(steps.agent_ids) - steps.ended, group.behavior_specs[name].actions
            discrete = [random.integers(size, size=count) for size in spec.discrete_branches]
            actions[name] = ActionBatch(np.zeros((count, 0), np.float32), np.stack(discrete, 1).astype(np.int32))
        result = group.step(actions)
        ended = [bool(steps.ended) for steps in result.steps.values()]
        over += any(ended) if result.games is None else len(result.games.env_ids)
    return result


@pytest.mark.lengthy
def test_each_episode_has_a_film_from_its_first_picture_to_its_last():
    group, films = filmed({"kind": "gymnasium", "id": "CartPole-v1"}, most=2)
    play(group, 3)
    group.close()
    assert [film.fps for film in films] == [50.0, 50.0]
    assert all(film.closed for film in films)
    assert all(film.pictures[0].shape == (400, 600, 3) for film in films)
    upright = films[0].pictures[0]
    assert not np.array_equal(films[0].pictures[-1], upright), "the pole has fallen"
    assert (
        abs(films[1].pictures[0].astype(int) - upright).mean() < abs(films[0].pictures[-1].astype(int) - upright).mean()
    )


@pytest.mark.lengthy
def test_a_built_in_game_is_filmed_from_its_scenes():
    group, films = filmed({"kind": "builtin", "id": "Volley", "options": {"points_to_win": 1}})
    play(group, 1)
    group.close()
    assert len(films) == 2, "what was not finished is kept, too"
    assert len(films[0].pictures) > 50
    assert films[0].pictures[0].shape == (300, 600, 3)


def test_a_folder_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    group = GameRecorder(request({"kind": "gymnasium", "id": "CartPole-v1"}), tmp_path / "file", "run", 1).make()
    with pytest.raises(StageError, match=r"can't write .*file.run-1 \(--video\)"):
        group.reset(1)
    group.close()
