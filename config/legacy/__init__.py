"""Files of older versions of ML-Agents, and keys that went out of use: converted to the form of today."""

from config.legacy.conversion import ConvertedDocument, convert_document
from config.legacy.yaml_writer import as_yaml

__all__ = ["ConvertedDocument", "as_yaml", "convert_document"]
