"""The table of statistics writers that a run may list by name; others are listed as `module:Class`.

TensorBoard's is always there. A new writer is one entry here, and the class that the entry names.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.tables import Table


@dataclass(frozen=True, slots=True)
class WriterKind:
    """One statistics writer. The class is given as `module:Class`, and imported when a run asks for it."""

    meaning: str
    """For the reference of the YAML."""
    made_by: str
    """Class with the methods of `StatisticsWriter`; its parameters are the keys of
    `with`."""
    packages: tuple[str, ...] = ()
    """Packages that it needs, which the extra of the writer's name brings."""
    patient: bool = False
    """It goes on after errors of the disk, which may have room again later."""


STATISTICS_WRITERS: Table[WriterKind] = Table(
    csv=WriterKind(
        "a table `statistics.csv` in each behaviour's folder",
        "headrace.pipeline.reporting.csv_writer:CsvWriter",
        patient=True,
    ),
    wandb=WriterKind("Weights & Biases", "headrace.pipeline.reporting.wandb_writer:WandbWriter", ("wandb",)),
    mlflow=WriterKind(
        "MLflow", "headrace.pipeline.reporting.mlflow_writer:MlflowWriter", ("mlflow", "sqlalchemy", "alembic")
    ),
)
"""By name."""
