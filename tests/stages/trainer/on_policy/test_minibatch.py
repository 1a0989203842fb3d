import numpy as np
import torch

from stages.trainer.on_policy.minibatch import Rollout


def rollout(n):
    """Row i holds i in every column, so that what belongs together can be told."""
    numbers = np.arange(n, dtype=np.float32)[:, None]
    widths = (3, 2, 4, 1, 1, 1)
    return Rollout([np.repeat(numbers, w, axis=1) for w in widths], np.repeat(numbers, 2, axis=1), "cpu")


def test_each_epoch_uses_whole_minibatches_of_distinct_rows_in_a_new_order():
    orders = []
    for minibatches in rollout(22).epochs(3, 5, np.random.default_rng(0)):
        assert [len(m.inputs.vectors) for m in minibatches] == [5, 5, 5, 5]
        orders.append([int(i) for m in minibatches for i in m.inputs.vectors[:, 0]])
    assert all(len(set(order)) == 20 for order in orders)
    assert orders[0] != orders[1] != orders[2]


def test_the_columns_of_a_row_stay_together():
    for minibatches in rollout(12).epochs(2, 4, np.random.default_rng(1)):
        for m in minibatches:
            numbers = m.inputs.vectors[:, :1]
            parts = [
                m.inputs.vectors,
                m.continuous,
                m.penalties,
                m.old_log_probs,
                m.advantages,
                m.returns,
                *m.choices,
            ]
            assert [p.shape[1] for p in parts] == [3, 2, 4, 1, 1, 1, 1, 1]
            assert all((part == numbers).all() for part in parts)
            assert m.rows.tolist() == numbers[:, 0].tolist()


def test_rows_that_an_epoch_leaves_out_come_in_another():
    seen = set()
    for minibatches in rollout(7).epochs(20, 4, np.random.default_rng(2)):
        seen |= {int(i) for m in minibatches for i in m.inputs.vectors[:, 0]}
    assert seen == set(range(7))


def test_images_stay_bytes_and_go_with_their_rows():
    images = torch.arange(12, dtype=torch.uint8)[:, None, None, None].expand(12, 3, 2, 2).contiguous()
    numbers = np.arange(12, dtype=np.float32)[:, None]
    with_images = Rollout([numbers] * 6, numbers, "cpu", (images,))
    seen = 0
    for minibatches in with_images.epochs(2, 4, np.random.default_rng(3)):
        for m in minibatches:
            (image,) = m.inputs.others
            assert (image.dtype, image.shape) == (torch.uint8, (4, 3, 2, 2))
            assert image[:, 0, 0, 0].tolist() == m.inputs.vectors[:, 0].tolist() == m.rows.tolist()
            seen += 1
    assert seen == 6
