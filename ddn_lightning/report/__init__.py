"""Results as tables, figures and an HTML page, beside the paper's numbers."""
