"""Memory that a learner's process has freed is not fetched from the system again."""

import ctypes
import os
import subprocess
import sys

import pytest

GLIBC = sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "mallopt")
FAULTS = """
import resource
from headrace.pipeline.hosts.run_host import keep_freed_memory

def faults():
    for _ in range(3):
        bytearray(1 << 25)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(1 << 25)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
assert keep_freed_memory()
print(faults(), given_back)
"""


@pytest.mark.lengthy
@pytest.mark.skipif(not GLIBC, reason="only glibc can be told to keep it")
def test_memory_that_was_freed_is_taken_again_without_a_page_fault():
    env = {name: value for name, value in os.environ.items() if name != "HEADRACE_PLATFORM"}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=env, capture_output=True, check=True)
    kept, given_back = map(int, done.stdout.split())
    assert kept < 1000 < given_back  # 10 times 32 MB are 81,920 pages
