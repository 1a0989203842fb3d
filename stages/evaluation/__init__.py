"""Evaluation: the score of a policy that plays without exploration."""

from headrace.stages.evaluation.opponents import EvaluationOpponents
from headrace.stages.evaluation.stage import EvaluationResult, EvaluationStage

__all__ = ["EvaluationOpponents", "EvaluationResult", "EvaluationStage"]
