"""Measurements of speed, which are not installed with the package: ``python -m benchmarks.steps --help``."""
