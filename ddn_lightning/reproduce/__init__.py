"""``ddn reproduce``: plan and execute the runs behind a table."""
