"""The `behavioral_cloning` of a behaviour: imitation of demonstrations beside its trainer's learning."""

from __future__ import annotations

from pydantic import Field

from headrace.config.fields import Float, Int, Settings, Text

DEMONSTRATIONS = (
    "Demonstrations: a recording of Unity (`.demo`), of Godot's addon (`.json`) or of ours (`.stream`), a folder of "
    "such, or a pattern, relative to the YAML's folder or else to the working directory; or `minari:<data set id>`."
)
"""Description of each `demo_path`."""


class BehavioralCloningSettings(Settings):
    """Imitation of demonstrations between the updates of `ppo`, `poca` or `sac`."""

    demo_path: Text = Field(min_length=1, description=DEMONSTRATIONS)
    steps: Int = Field(0, ge=0, description="Agent steps over which it fades out; 0: it never does.")
    strength: Float = Field(1.0, ge=0, description="Its learning rate, as a factor on the trainer's.")
    samples_per_update: Int = Field(0, ge=0, description="Most demonstrated steps to use per update; 0: all there are.")
    num_epoch: Int | None = Field(None, gt=0, description="Passes over the demonstrations per update; null: 3.")
    batch_size: Int | None = Field(
        None, gt=0, le=10**9, description="Steps in one gradient step; null: the trainer's `batch_size`."
    )
