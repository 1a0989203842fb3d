"""Policies outside training: exports, ONNX models, inference, warm starts, video clips and demonstration files."""
