"""Datasets as sequences of tasks."""
