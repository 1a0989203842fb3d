"""Policies as ONNX models, as Unity runs them. What writes them is in `model`, which imports torch."""

from stages.policy.onnx.onnx_policy import OnnxPolicy

__all__ = ["OnnxPolicy"]
