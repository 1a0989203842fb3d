"""Unity as an environment: several Unity programs, or the Editor, as one group whose members step on their own."""

from stages.environment.unity.group import UnityGroup
from stages.environment.unity.making import make_unity_group

__all__ = ["UnityGroup", "make_unity_group"]
