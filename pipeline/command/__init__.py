"""The command line: its options, those of ML-Agents' older versions, and their meaning."""

from headrace.pipeline.command.parser import ML_AGENTS, Request, contradictions, parse, parser, program, read_request

__all__ = ["ML_AGENTS", "Request", "contradictions", "parse", "parser", "program", "read_request"]
