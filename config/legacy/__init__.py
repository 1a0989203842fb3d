"""Converts older ML-Agents files, and keys that are no longer in use, to the current format."""

from headrace.config.legacy.conversion import ConvertedDocument, convert_document
from headrace.config.legacy.old_values import Notes, as_yaml

__all__ = ["ConvertedDocument", "Notes", "as_yaml", "convert_document"]
