"""What is kept of the past."""
