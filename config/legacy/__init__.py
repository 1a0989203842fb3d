"""Conversion of ML-Agents' older files, and of keys that went out of use, to today's form."""

from headrace.config.legacy.conversion import ConvertedDocument, convert_document
from headrace.config.legacy.old_values import Notes
from headrace.config.legacy.yaml_writer import as_yaml

__all__ = ["ConvertedDocument", "Notes", "as_yaml", "convert_document"]
