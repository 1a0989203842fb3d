"""Copies of checkpoints by the real command: a machine that dies in the middle of a copy, and one that goes on."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from run_configs import cartpole

STALLING = """
import fsspec

fsspec.register_implementation("stalling", "stalling_storage.Stalling")
"""
STORAGE = '''
import time
from pathlib import Path
from fsspec.implementations.local import LocalFileSystem


class Stalling(LocalFileSystem):
    """Copies one file; of the next one, it copies half and then says no more."""

    protocol = ("stalling", "file")
    copies = 0

    def put_file(self, source, target, **options):
        type(self).copies += 1
        if self.copies == 1:
            return super().put_file(source, target, **options)
        data = Path(source).read_bytes()
        Path(target).write_bytes(data[: len(data) // 2])
        while True:
            time.sleep(1)
'''


def test_a_run_goes_on_elsewhere_from_the_last_whole_copy(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(STALLING)
    (tmp_path / "stalling_storage.py").write_text(STORAGE)
    store = tmp_path / "store"
    copy, partial = store / "run.zip", store / "run.zip.partial"
    command = start(
        cartpole(behaviors__CartPole__max_steps=10**7),
        f"--set=checkpoint_settings.copy_to=stalling://{store}",
        environment={"PYTHONPATH": str(tmp_path)},
    )
    command.until(lambda: partial.exists() and copy.exists(), "half a second copy")
    number = command.until_checkpoint().number
    command.until_checkpoint(number + 3)  # the copy does not hold the run up
    command.process.kill()
    command.until_gone()
    copied = checkpoint_in(copy)
    shutil.rmtree(command.run_folder)

    plain = cartpole(behaviors__CartPole__max_steps=1000 * (copied + 3))
    command = start(plain, "--resume", f"--set=checkpoint_settings.copy_to=file://{store}")
    assert command.wait() == 0, command.output
    assert f"Fetching checkpoint {copied} of run" in command.output
    assert f"CartPole: {1000 * (copied + 3)}" in command.output or checkpoint_in(copy) > copied
    assert checkpoint_in(copy) == command.until_checkpoint().number > copied
    assert not partial.exists()
    command.assert_left_nothing()


def checkpoint_in(copy: Path) -> int:
    with zipfile.ZipFile(copy) as archive:
        return max(int(name.split("/")[1]) for name in archive.namelist() if name.startswith("checkpoints/"))
