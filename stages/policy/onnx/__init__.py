"""Policies as ONNX models, as Unity runs them. `model` writes them, and imports torch."""

from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy

__all__ = ["OnnxPolicy"]
