"""Names of engines, as they stand in what is written of their games."""

GODOT = "godot"
"""Key of `BehaviorSpec.spaces` under which the spaces of a game made with Godot stand, as the game announced them:
`observations` by key, `actions` as a list in the game's order, and `ordered`, whether that order is certain. Of such a
behaviour models have a format of their own (`stages/policy/onnx/godot.py`)."""
