"""Files of older versions of ML-Agents, and keys that went out of use: converted to the form of today."""

from config.legacy.modern import Modern, modernise
from config.legacy.writing import as_yaml

__all__ = ["Modern", "as_yaml", "modernise"]
