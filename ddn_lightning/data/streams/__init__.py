"""Streams: which sample of a task sequence comes when, and with which label."""
