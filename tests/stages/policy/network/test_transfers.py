import numpy as np
import pytest
import torch

from headrace.stages.policy.network.layers import gathered, host_copies, to_device


def test_on_a_cpu_a_tensor_is_handed_on_as_it_is():
    tensor = torch.arange(6.0)
    assert to_device(tensor, "cpu") is tensor
    (rows,) = gathered((tensor,), torch.tensor([4, 1]), "cpu")
    assert rows.tolist() == [4.0, 1.0]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
def test_a_tensor_may_change_as_soon_as_it_has_been_sent_to_a_gpu():
    tensor = torch.arange(1 << 22, dtype=torch.float32)
    there = to_device(tensor, "cuda:0")
    tensor.zero_()
    assert torch.equal(there.cpu(), torch.arange(1 << 22, dtype=torch.float32))


@needs_gpu
def test_rows_are_gathered_on_a_gpu():
    pictures = torch.arange(24, dtype=torch.uint8).view(4, 2, 3)
    (rows,) = gathered((pictures,), torch.tensor([3, 0]), "cuda")
    assert torch.equal(rows.cpu(), pictures[[3, 0]])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_host_copies_are_contiguous_and_own_their_memory(device):
    vector = torch.arange(100.0, device=device)
    views = {
        "transposed": vector[10:22].view(3, 4).T,
        "strided": vector[30:50].view(2, 2, 5)[0],
        "a number": vector[9],
        "none": vector[60:60],
        "elsewhere": torch.arange(3, dtype=torch.uint8, device=device),
    }
    copies = host_copies(views)
    assert list(copies) == list(views)
    for name, view in views.items():
        np.testing.assert_array_equal(copies[name], view.cpu().numpy())
        assert copies[name].flags.c_contiguous
        assert copies[name].flags.owndata
