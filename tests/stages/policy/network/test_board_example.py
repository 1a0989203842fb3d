"""examples/connect_four: the configuration, and what the network beside it sees."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings, load_config
from headrace.queues.specs import ObservationSpec
from headrace.stages.games import connect_four
from headrace.stages.games.connect_four import ConnectFourGroup
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import design_of
from headrace.stages.policy.network.torch_policy import TorchPolicy
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import TrainerContext

FOLDER = Path(__file__).parents[4] / "examples" / "connect_four"
BOARD = ObservationSpec("observation", (84,), "int8")


def network(*observations, **settings):
    made = load_attribute("board_network:BoardNetwork", FOLDER, "network")
    return made(observations or (BOARD,), NetworkSettings(**settings))


def boards(count=50, seed=0):
    """Boards in mid-game, as the player to move sees them, and the columns' heights."""
    group = ConnectFourGroup(count, opening_moves=30)
    group.reset(seed)
    mover, each = group.to_move, np.arange(count)
    return connect_four.to_planes(group.stones[mover, each], group.stones[1 - mover, each]), group.heights


def test_the_board_network_sees_the_surroundings_of_each_column_s_next_place():
    planes, heights = boards()
    board = planes.reshape(-1, 6, 7, 2)
    assert heights.max() == 6, "full columns among them"
    seen = network().around_next_places(torch.from_numpy(board).float()).reshape(50, 7, 7, 7, 3).numpy()
    for at, column in np.ndindex(50, 7):
        row = 5 - heights[at, column]
        for down, right in np.ndindex(7, 7):
            y, x = row + down - 3, column + right - 3
            there = (*board[at, y, x], 0) if 0 <= y < 6 and 0 <= x < 7 else (0, 0, 1)
            assert tuple(seen[at, column, down, right]) == there


def test_a_threat_is_the_same_to_it_wherever_it_is():
    """Nothing but columns' neighbourhoods reaches a column's features; equal ones give equal features."""
    net = network(hidden_units=16)
    board = torch.zeros(1, 6, 7, 2)
    board[0, 5, [0, 6], 0] = board[0, 4, [0, 6], 1] = 1
    first, last = net.around_next_places(board)[0, [0, 6]]
    mirrored = first.reshape(7, 7, 3).flip(1).flatten()
    assert torch.equal(last, mirrored)
    features = net((board.flatten(1),))[0, : 7 * 4].reshape(7, 4)
    expected = torch.relu(net.judge(torch.relu(net.look(first))))
    assert_close(features[0], expected)


def test_another_game_is_refused():
    with pytest.raises(ValueError, match="vector has 4 numbers; expected the 84 of connect four"):
        network(ObservationSpec("vector", (4,)))


def test_the_configuration_gives_a_policy_that_keeps_to_the_masks():
    config = load_config(FOLDER / "config.yaml")
    (spec, _) = ConnectFourGroup(1, **config.environment.options).behavior_specs.values()
    settings = config.behavior_settings("ConnectFour")
    policy = TorchPolicy(design_of(spec, settings, FOLDER))
    policy.load(PPOTrainer(TrainerContext("ConnectFour", settings, spec, folder=FOLDER)).policy())
    planes, heights = boards()
    masks = connect_four.free(heights)
    moves = policy.act((planes,), masks, np.random.default_rng(0), False).actions.discrete[:, 0]
    assert masks[np.arange(50), moves].all()
