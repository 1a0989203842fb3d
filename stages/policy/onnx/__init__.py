"""Policies as ONNX models that Unity can run. `model` writes the models, and imports torch."""
