"""Results as tables, with the paper's numbers beside ours."""
