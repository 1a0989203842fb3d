"""The command line: its options, those of ML-Agents' older versions, and what they stand for."""

from pipeline.command.parser import parse, parser, program
from pipeline.command.request import Request, contradictions, understand

__all__ = ["Request", "contradictions", "parse", "parser", "program", "understand"]
