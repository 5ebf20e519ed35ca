"""Checks of a checkpoint before it is restored."""
