"""Policies as ONNX models that Unity can run. `model` writes the models, and imports torch."""

from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy

__all__ = ["OnnxPolicy"]
