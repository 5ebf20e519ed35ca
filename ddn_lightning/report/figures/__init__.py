"""Figures: pure functions of what runs have measured, each giving a matplotlib ``Figure``."""
