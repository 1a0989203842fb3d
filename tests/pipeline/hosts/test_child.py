"""The entry of a process host."""

from __future__ import annotations

import subprocess
import sys

import msgpack
import pytest

BIRTH = msgpack.packb({"plan": {"name": "actor-0", "role": "actor"}, "links": {}})


@pytest.mark.parametrize("received", [b"", BIRTH[:1], BIRTH[:-1]], ids=["nothing", "its first byte", "all but a byte"])
def test_a_host_whose_main_dies_while_it_says_what_to_do_ends_without_a_word(received):
    child = subprocess.run(
        [sys.executable, "-m", "pipeline.hosts.child", "actor-0"], input=received, capture_output=True
    )
    assert (child.returncode, child.stdout, child.stderr) == (1, b"", b"")
