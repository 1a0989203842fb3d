"""Evaluation: how good a policy is, played without exploration."""

from stages.evaluation.stage import EvaluationResult, EvaluationStage

__all__ = ["EvaluationResult", "EvaluationStage"]
