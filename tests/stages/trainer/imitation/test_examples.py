"""Steps as an update takes them in: the policy's own terms, sequences, padding, the action before."""

import numpy as np

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign
from headrace.stages.policy.observations import Normalizer
from headrace.stages.trainer.imitation.cloning import examples_of
from headrace.stages.trainer.imitation.demonstrations import Demonstrations

ACTIONS = ActionSpec(2, (3,), unbounded=(1,))
MEMORY = {"memory": {"sequence_length": 2, "memory_size": 4}}


def demonstrations(lengths=(3, 2), starts=(True, True), masks=None, images=False):
    n, k = sum(lengths), len(lengths)
    specs = (ObservationSpec("v", (1,)), *([ObservationSpec("eye", (3, 4, 4), "uint8")] if images else []))
    observed = [
        (np.arange(m, dtype=np.float32)[:, None], *([np.full((m, 3, 4, 4), 9, np.uint8)] if images else []))
        for m in (n, k)
    ]
    return Demonstrations(
        BehaviorSpec("Test", specs, ACTIONS),
        observed[0],
        observed[1],
        continuous=(np.arange(2 * n).reshape(n, 2) / 16).astype(np.float32),
        choices=np.arange(n)[:, None] % 3,
        rewards=np.zeros(n, np.float32),
        lengths=np.array(lengths),
        terminated=np.zeros(k, np.bool_),
        starts_episode=np.array(starts),
        masks=masks,
    )


def examples(squashed=False, settings=(), **parts):
    made = demonstrations(**parts)
    return examples_of(made, PolicyDesign(made.spec, NetworkSettings.model_validate(dict(settings)), squashed))


def test_bounded_actions_are_scaled_to_what_a_plain_gaussian_has_to_draw_for_them():
    given = examples(squashed=False).batch(np.array([4]), None, "cpu").continuous
    np.testing.assert_allclose(given, [[3 * 8 / 16, 9 / 16]])  # the second one is unbounded
    np.testing.assert_allclose(examples(squashed=True).batch(np.array([4]), None, "cpu").continuous, [[8 / 16, 9 / 16]])


def test_without_memory_a_batch_is_some_of_the_steps_in_any_order():
    batch = examples(images=True).batch(np.array([4, 0]), None, "cpu")
    assert batch.inputs.vectors.tolist() == [[4], [0]]
    assert batch.inputs.others[0].shape == (2, 3, 4, 4)
    assert batch.choices.tolist() == [[1], [0]]
    assert batch.weights is None
    assert batch.inputs.memories is None


def test_vectors_are_normalised_by_the_trainers_normaliser_and_left_alone_in_the_examples():
    normalizer = Normalizer(1)
    normalizer.update(np.full((99, 1), 2, np.float32))
    made = examples()
    batch = made.batch(slice(None), normalizer, "cpu")
    np.testing.assert_allclose(batch.inputs.vectors, normalizer.apply(made.observations.vectors))
    assert made.observations.vectors[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_with_memory_a_batch_is_sequences_that_begin_with_nothing_in_memory():
    batch = examples(settings=MEMORY).batch(np.array([1, 2]), None, "cpu")
    assert batch.inputs.sequence_length == 2
    assert batch.inputs.vectors[:, 0].tolist() == [2, 2, 3, 4]
    assert batch.weights.tolist() == [1, 0, 1, 1]
    assert batch.inputs.memories.shape == (2, 4)
    assert not batch.inputs.memories.any()


def test_the_action_before_is_the_last_one_as_the_environment_got_it_and_none_at_an_episodes_start():
    # The second trajectory continues the first; the third is another episode.
    before = examples(settings=MEMORY, lengths=(2, 1, 2), starts=(True, False, True)).previous
    none = [0.0, 0.0, 1.0, 0.0, 0.0]
    expected = [none, [0, 1 / 16, 1, 0, 0], [2 / 16, 3 / 16, 0, 1, 0], none, [6 / 16, 7 / 16, 1, 0, 0]]
    np.testing.assert_allclose(before, expected)


def test_masked_choices_have_no_probability():
    masks = np.ones((5, 3), np.bool_)
    masks[2, 1] = False
    batch = examples(masks=masks).batch(np.array([1, 2]), None, "cpu")
    assert batch.penalties.tolist() == [[0, 0, 0], [0, MASK_PENALTY, 0]]
    assert examples().batch(np.array([0]), None, "cpu").penalties is None
