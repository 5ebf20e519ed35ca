"""``ddn bench``: the cost of a training step on this machine."""
