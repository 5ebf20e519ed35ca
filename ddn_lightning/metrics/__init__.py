"""Accuracy and forgetting."""
