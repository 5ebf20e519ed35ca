"""What a run leaves in its folder, written and read here: configuration, results, curves, observations."""
