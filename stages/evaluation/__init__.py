"""Evaluation: the score of a policy that plays without exploration."""

from stages.evaluation.opponents import EvaluationOpponents
from stages.evaluation.stage import EvaluationResult, EvaluationStage

__all__ = ["EvaluationOpponents", "EvaluationResult", "EvaluationStage"]
