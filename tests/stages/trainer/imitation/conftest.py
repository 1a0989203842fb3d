"""Recordings of made-up experts."""

import numpy as np
import pytest
from imitation_spec import SPEC
from trainer_samples import experience

from headrace.queues.stream_file import StreamHeader, StreamWriter


@pytest.fixture
def record(tmp_path):
    """Writes batches to a stream file, as a run of some trainer would have."""

    def write(batches, name="expert.stream", spec=SPEC, edge="trainer", run_id="expert", config=None, specs=None):
        config = {"behaviors": {spec.name: {"trainer_type": "sac"}}} if config is None else config
        path = tmp_path / name
        squashed = [name for name, block in config.get("behaviors", {}).items() if block["trainer_type"] == "sac"]
        header = StreamHeader.of(run_id, 1.7e9, (edge,), specs or (spec,), config, squashed=squashed)
        with StreamWriter(path, header) as writer:
            for i, batch in enumerate(batches):
                writer.write(edge, batch, float(i))
        return path

    return write


@pytest.fixture
def expert():
    """Trajectories of an expert; keyword arguments replace columns."""

    def make(lengths, spec=SPEC, seed=0, squashed=True, **columns):
        batch = experience(spec, lengths, seed, squashed=squashed)
        return batch.replace(**{name: np.asarray(column) for name, column in columns.items()})

    return make
