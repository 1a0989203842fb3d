"""The table of observation kinds: which ranks each kind's shapes have, and where its code is.

To add a kind, add an entry here and write the classes and functions that the entry names as `module:name`. They are
imported when a network needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationKind:
    """One kind of observation."""

    ranks: tuple[int, ...]
    """Ranks of this kind's shapes; no two kinds share a rank."""
    description: str
    """Description that follows the word "expected" in messages."""
    meaning: str
    """Description of these observations for the YAML reference."""
    box_ranks: tuple[int, ...] | None = None
    """Ranks of a Gymnasium Box that can be of this kind; None for all ranks."""
    pixels: bool = False
    """True if uint8 values represent the range 0 to 1 and channels may come last. Models for Unity take floats,
    channels first."""
    encoder: str | None = None
    """Torch module that encodes all observations of the kind (`headrace.stages.policy.network.body:KindEncoder`).

    None means that the observations are *flat*: they are concatenated into one float32 matrix, which is normalised,
    stored and stacked as columns, and passed to the network unchanged. If all observations are flat, actors use NumPy
    for inference.
    """
    onnx: str | None = None
    """Function that computes what the encoder does, by operations that torch can write to ONNX for Unity.

    It takes the encoder and the arguments of its `forward`. None if torch can write the encoder itself.
    """
    unity_dimensions: tuple[int, ...] = ()
    """Flags for each axis in Unity's messages: 1 for none, 2 for translational equivariance, 4 for variable size."""

    @property
    def flat(self) -> bool:
        """True if observations of this kind are concatenated into one matrix; see `encoder`."""
        return self.encoder is None


OBSERVATION_KINDS: Table[ObservationKind] = Table(
    vector=ObservationKind(
        ranks=(0, 1),
        description="a vector (rank 1)",
        meaning="numbers in a row",
        unity_dimensions=(1,),
    ),
    image=ObservationKind(
        ranks=(3,),
        description="an image (rank 3)",
        meaning="of rank 2, 3 or 4 (stacked frames)",
        box_ranks=(2, 3, 4),
        pixels=True,
        encoder="headrace.stages.policy.network.images:ImageEncoders",
        unity_dimensions=(1, 2, 2),
    ),
    set=ObservationKind(
        ranks=(2,),
        description="a set of elements (rank 2)",
        meaning="rows of elements of one kind, in no particular order",
        box_ranks=(2,),
        encoder="headrace.stages.policy.network.sets:SetEncoder",
        onnx="headrace.stages.policy.onnx.actor:encode_sets",
        unity_dimensions=(4, 1),
    ),
)
"""The observation kinds, keyed by name, in encoding order: each encoder also receives the encodings of earlier kinds.
"""


def kind_of_rank(rank: int) -> str:
    """Return the name of the observation kind with this rank; `unknown` if there is none."""
    return next((name for name, kind in OBSERVATION_KINDS.items() if rank in kind.ranks), "unknown")
