"""The scenes of the stand-in Unity."""

from unity_client.scenes.choice import make_scene

__all__ = ["make_scene"]
