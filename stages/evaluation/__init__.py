"""Evaluation: scores of policies that play without exploration."""

from headrace.stages.evaluation.opponents import EvaluationOpponents
from headrace.stages.evaluation.stage import EvaluationResult, EvaluationStage

__all__ = ["EvaluationOpponents", "EvaluationResult", "EvaluationStage"]
