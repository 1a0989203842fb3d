"""The command line: its options, including those of older ML-Agents versions, and how they are interpreted."""

from headrace.pipeline.command.parser import ML_AGENTS, Request, contradictions, parse, parser, program, read_request

__all__ = ["ML_AGENTS", "Request", "contradictions", "parse", "parser", "program", "read_request"]
