"""``ddn reproduce``: the runs behind a table, and the table that comes out of them."""
