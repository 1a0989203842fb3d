"""`.pt` files of strangers: what is read is what torch reads, and everything else is refused at little cost."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from pickle_bombs import BOMBS, archived, vector_of

from headrace.pipeline.policies.tensor_file import read_tensors


def test_every_kind_of_tensor_is_read_as_torch_wrote_it(tmp_path):
    kinds = (np.float32, np.float64, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)
    content = {np.dtype(kind).name: torch.from_numpy(np.arange(6).astype(kind).reshape(2, 3)) for kind in kinds}
    whole = torch.arange(12.0).reshape(3, 4)
    content |= {"turned": whole.T, "part": whole[1:, 2:], "none": torch.zeros(0, 3), "one": torch.tensor(2.5)}
    torch.save(
        {"tensors": content, "plain": [1, -(2**40), 0.5, "a", None, True, (1, (2,))], 3: OrderedDict(a=1)},
        tmp_path / "a.pt",
    )
    read = read_tensors(tmp_path / "a.pt")
    assert read["plain"] == [1, -(2**40), 0.5, "a", None, True, (1, (2,))]
    assert read[3] == {"a": 1}
    for name, tensor in content.items():
        assert read["tensors"][name].dtype == tensor.numpy().dtype
        np.testing.assert_array_equal(read["tensors"][name], tensor.numpy(), name)
        assert read["tensors"][name].flags.writeable


def test_ml_agents_moments_and_notes_are_read_like_torch_reads_them():
    for path in sorted((Path(__file__).parents[2] / "data" / "ml_agents").glob("*/Simple/checkpoint.pt")):
        ours, theirs = read_tensors(path), torch.load(path, weights_only=True)
        assert ours.keys() == theirs.keys()
        for name, part in theirs.items():
            assert ours[name].keys() == part.keys()
            for key, tensor in part.items():
                if isinstance(tensor, torch.Tensor):
                    np.testing.assert_array_equal(ours[name][key], tensor.numpy(), key)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_by_name(tmp_path, name):
    make, message = BOMBS[name]
    path = make(tmp_path / "bomb.pt")
    with pytest.raises(ValueError, match=rf"bomb\.pt is (not an exported policy|damaged): .*{message}"):
        read_tensors(path)


def test_a_storage_of_another_length_than_its_entry_is_refused(tmp_path):
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive, zipfile.ZipFile(tmp_path / "b.pt", "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, bytes(8) if name.endswith("data/0") else archive.read(name))
    with pytest.raises(ValueError, match=r"its entry data/0 has 2 numbers, not 4"):
        read_tensors(tmp_path / "b.pt")


def test_a_view_beyond_its_storage_is_refused(tmp_path):
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        content = archive.read(name)
        rest = {other.partition("/")[2]: archive.read(other) for other in archive.namelist() if other != name}
    assert content.count(b"K\x04\x85") == 1
    path = archived(tmp_path / "b.pt", content.replace(b"K\x04\x85", b"K\x05\x85"), rest)
    with pytest.raises(ValueError, match="it is damaged, or not a PyTorch file"):
        read_tensors(path)


def test_tensors_of_several_types_in_one_entry_take_its_memory_once(tmp_path):
    kinds = {"Float": 4, "Int": 4, "Short": 2, "Byte": 1}
    vectors = b"".join(vector_of(kind=kind, numbers=4_000_000 // size) for kind, size in kinds.items())
    archived(tmp_path / "a.pt", b"\x80\x02(" + vectors + b"t.", {"data/0": bytes(4_000_000)})
    tracemalloc.start()
    try:
        assert [vector.itemsize for vector in read_tensors(tmp_path / "a.pt")] == [*kinds.values()]
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()
