"""``ddn tune``: search for hyper-parameters on validation images, with one study per method and plug-in."""
