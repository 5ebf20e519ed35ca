"""Results as tables, figures and an HTML page."""
