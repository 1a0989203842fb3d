"""The command line: its options, those of ML-Agents' older versions, and their meaning."""

from pipeline.command.parser import ML_AGENTS, parse, parser, program
from pipeline.command.request import Request, contradictions, read_request
from pipeline.command.taken_names import taken_names

__all__ = ["ML_AGENTS", "Request", "contradictions", "parse", "parser", "program", "read_request", "taken_names"]
