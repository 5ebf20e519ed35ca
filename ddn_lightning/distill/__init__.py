"""Soft labels for what is replayed: the plug-in of every replay method."""
