"""Policies as ONNX models, as Unity runs them. `model` writes the models, and imports torch."""

from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy

__all__ = ["OnnxPolicy"]
