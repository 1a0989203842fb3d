"""Evaluation: how good a policy is, played without exploration."""

from stages.evaluation.stage import Evaluation, EvaluationStage

__all__ = ["Evaluation", "EvaluationStage"]
