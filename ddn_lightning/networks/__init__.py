"""Backbones: networks from images to features, without a head."""
