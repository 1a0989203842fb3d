"""Policies beyond their training: exports, ONNX models, inference, warm starts, clips, demonstration files."""
