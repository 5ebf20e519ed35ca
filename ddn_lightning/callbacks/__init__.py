"""Callbacks watch, store and measure; they never enter the loss."""
