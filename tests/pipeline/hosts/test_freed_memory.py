"""Memory that a learner's process has freed is not fetched from the system again."""

import ctypes
import os
import subprocess
import sys

import pytest

GLIBC = sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "mallopt")
FAULTS = """
import resource, sys
from headrace.pipeline.hosts.host_process import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(3):
    bytearray(1 << 25)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(1 << 25)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.lengthy
@pytest.mark.skipif(not GLIBC, reason="only glibc can be told to keep it")
def test_memory_that_was_freed_is_taken_again_without_a_page_fault():
    env = {name: value for name, value in os.environ.items() if name != "HEADRACE_PLATFORM"}
    found = {
        case: int(subprocess.run([sys.executable, "-c", FAULTS, case], env=env, capture_output=True, check=True).stdout)
        for case in ("kept", "given back")
    }
    assert found["kept"] < 1000 < found["given back"]  # 10 times 32 MB are 81,920 pages
