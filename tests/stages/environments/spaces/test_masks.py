"""Action masks: all forms that environments give them in are the same columns, and what can't be obeyed is named."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.environments.spaces.masks import AgentMasks, MaskError, MaskReader
from headrace.stages.environments.spaces.own_space import own_space, plain_spaces
from headrace.stages.errors import BrokenEnvironmentError, StageError

TWO_AND_THREE = spaces.MultiDiscrete([2, 3])
GRID = spaces.MultiDiscrete(np.array([[2, 3], [2, 2]]))
FLAGS = spaces.MultiBinary(2)
BODY = spaces.Dict({"hand": TWO_AND_THREE, "leg": spaces.Box(-1, 1, (1,)), "walk": spaces.Discrete(2)})
PAIR = spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Discrete(3), FLAGS))
NESTED = spaces.Dict({"arm": spaces.Dict({"grip": spaces.Discrete(2), "turn": spaces.Box(0, 1)}), "flags": FLAGS})

ONE = [
    (spaces.Discrete(3, start=5), [1, 0, 1], [1, 0, 1]),
    (spaces.Discrete(3), [[1, 0, 1]], [1, 0, 1]),
    (spaces.Discrete(3), None, [1, 1, 1]),
    (TWO_AND_THREE, [0, 1, 1, 0, 1], [0, 1, 1, 0, 1]),
    (TWO_AND_THREE, [[0, 1, 0], [1, 0, 1]], [0, 1, 1, 0, 1]),
    (TWO_AND_THREE, ([0, 1], [1, 0, 1]), [0, 1, 1, 0, 1]),
    (TWO_AND_THREE, ([0, 1], None), [0, 1, 1, 1, 1]),
    (GRID, [0, 1, 1, 0, 0, 1, 0, 0, 1], [0, 1, 1, 0, 0, 1, 0, 0, 1]),
    (GRID, (([0, 1], [1, 0, 0]), ([1, 0], [0, 1])), [0, 1, 1, 0, 0, 1, 0, 0, 1]),
    (GRID, ([0, 1], None, [1, 0], None), [0, 1, 1, 1, 1, 1, 0, 1, 1]),
    (FLAGS, [0, 1, 1, 0], [0, 1, 1, 0]),
    (FLAGS, [[0, 1], [1, 0]], [0, 1, 1, 0]),
    (BODY, [0, 1, 1, 0, 1, 1, 0], [0, 1, 1, 0, 1, 1, 0]),
    (BODY, {"hand": [0, 1, 1, 0, 1], "leg": None, "walk": [1, 0]}, [0, 1, 1, 0, 1, 1, 0]),
    (BODY, {"walk": [1, 0]}, [1, 1, 1, 1, 1, 1, 0]),
    (BODY, ([0, 1], [1, 0, 1], [1, 0]), [0, 1, 1, 0, 1, 1, 0]),
    (PAIR, (None, [1, 0, 0], [0, 1, 1, 0]), [1, 0, 0, 0, 1, 1, 0]),
    (PAIR, ([1, 0, 0], [0, 1], [1, 0]), [1, 0, 0, 0, 1, 1, 0]),
    (NESTED, {"arm": {"grip": [1, 0], "turn": None}, "flags": [0, 1, 1, 1]}, [1, 0, 0, 1, 1, 1]),
]
"""Space, a mask of one agent, and its column. Lists of numbers become arrays of each type below."""
TYPES = [np.int8, np.bool_, np.float32, np.uint8, np.int64, list]


def as_type(mask, kind):
    if isinstance(mask, dict):
        return {key: as_type(part, kind) for key, part in mask.items()}
    if isinstance(mask, tuple) and not isinstance(mask[0], int):
        return tuple(as_type(part, kind) for part in mask)
    return mask if mask is None or kind is list else np.array(mask, kind)


def reader_of(space):
    return MaskReader(own_space(space))


def batched(masks):
    """What Gymnasium makes of the infos of single environments."""
    infos, envs = {}, VectorEnv()
    envs.num_envs = len(masks)
    for number, mask in enumerate(masks):
        infos = envs._add_info(infos, {} if mask is None else {"action_mask": mask}, number)
    return infos.get("action_mask"), infos.get("_action_mask")


@pytest.mark.parametrize(("space", "mask", "column"), ONE)
def test_all_forms_of_all_types_are_the_same_column(space, mask, column):
    for kind in TYPES:
        given_mask = as_type(mask, kind)
        assert reader_of(space).read([given_mask], 1).tolist() == [[bool(each) for each in column]], kind
        three = reader_of(space).read([given_mask, None, given_mask], 3)
        assert three.astype(int).tolist() == [column, [1] * len(column), column], kind


@pytest.mark.parametrize(("space", "mask", "column"), ONE)
def test_masks_that_gymnasium_has_batched_are_the_same_columns(space, mask, column):
    for kind in TYPES[:-1]:
        masks, there = batched([None, as_type(mask, kind), as_type(mask, kind)])
        found = reader_of(space).read(masks, 3, there).astype(int).tolist()
        assert found == [[1] * len(column), column, column], kind


@pytest.mark.parametrize(
    ("space", "batch", "columns"),
    [
        (TWO_AND_THREE, ([[0, 1], [1, 1]], [[1, 0, 0], [0, 0, 1]]), [[0, 1, 1, 0, 0], [1, 1, 0, 0, 1]]),
        (BODY, {"walk": [[1, 0], [0, 1]]}, [[1] * 5 + [1, 0], [1] * 5 + [0, 1]]),
    ],
)
def test_masks_of_several_agents_may_be_an_array_for_each_part(space, batch, columns):
    assert reader_of(space).read(as_type(batch, np.int8), 2).astype(int).tolist() == columns


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    n=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_a_mask_is_read_back_from_every_form(sizes, n, seed, data):
    """Masks [n, choices] written as rows, padded rows and tuples are read back."""
    random = np.random.default_rng(seed)
    masks = random.random((n, sum(sizes))) < 0.5
    ends = np.cumsum(sizes)
    masks[:, ends - 1] = True
    split = [np.split(mask.astype(np.int8), ends[:-1]) for mask in masks]
    padded = [np.array([np.pad(part, (0, max(sizes) - len(part))) for part in parts]) for parts in split]
    forms = [[*masks], [tuple(parts) for parts in split], padded, masks.astype(np.float32), np.array(padded)]

    given_masks = data.draw(st.sampled_from(forms))

    assert (reader_of(spaces.MultiDiscrete(sizes)).read(given_masks, n) == masks).all()


WRONG = [
    (spaces.Discrete(3), np.ones(4), r"^has shape \(4,\); expected 1 for each allowed choice .*: 3$"),
    (spaces.Discrete(3), "all", r"^is str 'all'; expected"),
    (spaces.Discrete(3), np.array([0, -np.inf, 0]), r"^has -inf at index 1; expected 1 for each allowed choice"),
    (spaces.Discrete(3), np.array([0.2, 0.8, 0]), r"^has 0.2 at index 0; expected 1 for each allowed choice"),
    (spaces.Discrete(3), np.zeros(3, np.int8), r"^forbids all 3 choices; expected at least one 1, which means allowed"),
    (TWO_AND_THREE, np.array([1, 0, 0, 0, 0]), r"^forbids all 3 choices of branch 1; expected"),
    (TWO_AND_THREE, (np.ones(2), np.ones(4)), r"^\[1\] has shape \(4,\)"),
    (TWO_AND_THREE, {"a": np.ones(2)}, "^is a map, but the space is .*, not a Dict"),
    (FLAGS, np.array([0, 2]), r"^has shape \(2,\); expected 1 for each allowed choice .*: 4 \(2 \+ 2\)$"),
    (FLAGS, np.array([True, False]), r"^has shape \(2,\); expected 1 for each allowed choice .*: 4 \(2 \+ 2\)$"),
    (BODY, {"wing": np.ones(2)}, (
        "^has the key 'wing', which the action space does not have; its keys are: 'hand', 'leg', 'walk'$"
    )),
    (BODY, {"leg": np.ones(1)}, r"^\['leg'\] is for Box\(.*\), which can't be masked"),
    (BODY, {"hand": np.ones(4)}, r"^\['hand'\] has shape \(4,\)"),
    (spaces.Box(-1, 1, (2,)), np.ones(2), r"^is for Box\(.*\), which can't be masked; expected a mask of"),
]  # fmt: skip


@pytest.mark.parametrize(("space", "mask", "words"), WRONG)
def test_a_mask_that_can_not_be_obeyed_is_named_with_its_row(space, mask, words):
    with pytest.raises(MaskError, match=words) as one:
        reader_of(space).read([mask], 1)
    assert one.value.row == 0
    with pytest.raises(MaskError, match=words) as third:
        reader_of(space).read([None, None, mask], 3)
    assert third.value.row == 2


def test_only_deciding_agents_need_a_choice():
    masks = np.array([[0, 0], [0, 1]])
    reader = reader_of(spaces.Discrete(2))

    assert reader.read(masks, 2, None, np.array([False, True])).tolist() == [[False, False], [False, True]]
    assert reader.read(masks, 2, np.array([False, True])).tolist() == [[True, True], [False, True]]
    with pytest.raises(MaskError, match="forbids all 2 choices"):
        reader.read(masks, 2, None, np.array([True, False]))


def test_branches_without_a_space_have_masks_by_their_names_too():
    named = MaskReader.of_branches(ActionSpec(0, (2, 3), branch_names=("jump", "gear")))
    unnamed = MaskReader.of_branches(ActionSpec(0, (2, 3)))

    for mask in ([0, 1, 1, 0, 1], ([0, 1], [1, 0, 1]), [[0, 1, 0], [1, 0, 1]]):
        assert named.read([mask], 1).tolist() == unnamed.read([mask], 1).tolist() == [[False, True, True, False, True]]
    assert named.read([{"gear": [1, 0, 1]}], 1).tolist() == [[True, True, True, False, True]]
    with pytest.raises(MaskError, match="forbids all 3 choices of branch 'gear'"):
        named.read([[0, 1, 0, 0, 0]], 1)


@pytest.mark.parametrize("stated", [True, False])
def test_masks_for_a_policy_may_omit_the_learned_repeat(stated):
    plain = plain_spaces(own_space(spaces.Box(0, 1)), own_space(TWO_AND_THREE)) if stated else None
    actions = ActionSpec(0, (2, 3, 2), masked=True)
    reader = MaskReader.of_policy(BehaviorSpec("B", (), actions, action_repeat="learned", spaces=plain))
    whole, own = [0, 1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 1]

    assert reader.read(np.array([whole, whole]), 2).astype(int).tolist() == [whole] * 2
    assert reader.read([tuple(np.split(np.array(own), [2]))], 1).astype(int).tolist() == [[*own, 1, 1]]
    assert reader.read(np.array([own]), 1).astype(int).tolist() == [[*own, 1, 1]]
    with pytest.raises(MaskError, match="forbids all 2 choices of branch 2"):
        reader.read([[*own, 0, 0]], 1)


# Of agents: in two places, too late, where there is nothing to choose.


def masks_of(space, observed=False):
    return AgentMasks(reader_of(space), observed, "Env")


def who(row):
    return "Env" if row is None else f"Env, instance {row}"


def test_masks_in_observation_and_info_are_combined():
    masks = masks_of(spaces.Discrete(3), observed=True)

    found = masks.read(2, np.array([[1, 1, 0], [1, 1, 1]]), [np.array([0, 1, 1]), None], who)

    assert found.astype(int).tolist() == [[0, 1, 0], [1, 1, 1]]
    words = r"^Env, instance 1: info\['action_mask'\] forbids all 3 choices"
    with pytest.raises(BrokenEnvironmentError, match=words):
        masks.read(2, np.eye(3)[:2], [None, [1, 0, 1]], who)


def test_a_mask_that_comes_once_the_policy_is_made_without_masks_is_an_error():
    masks = masks_of(spaces.Discrete(3))
    assert masks.read(2, None, [None, None], who) is None
    with pytest.raises(StageError, match=r"^Env: the infos now contain action_mask, .*from reset\(\) as well"):
        masks.read(2, None, [None, np.ones(3)], who)


def test_a_mask_for_continuous_actions_is_an_error():
    masks = masks_of(spaces.Box(-1, 1))
    masks.expect({"action_mask": [1]})
    assert not masks.masked
    with pytest.raises(BrokenEnvironmentError, match=r"^Env.*: info\['action_mask'\] is for Box"):
        masks.read(1, None, [np.ones(1)], who)
    with pytest.raises(StageError, match="^Env: its observation space has the key 'action_mask', but"):
        masks_of(spaces.Box(-1, 1), observed=True)


def test_without_masks_everything_is_allowed():
    masks = masks_of(spaces.Discrete(2))
    masks.expect({"action_mask": None})
    assert masks.read(2, None, None, who).all()
    assert masks.read(0, None, [], who).shape == (0, 2)


@pytest.mark.parametrize("key", ["action_masks", "legal_moves", "valid_action_mask", "mask", "action_masks()"])
def test_a_mask_under_another_name_is_warned_about_once(key, caplog):
    masks = masks_of(spaces.Discrete(2))
    masks.expect({"speed": 1, key: [1, 0]})
    masks.expect({key: [1, 0]})
    assert not masks.masked
    (message,) = caplog.messages
    assert message.startswith(f"Env: it has {key!r}, which Headrace ignores; put action masks into the infos")
