"""What is demanded of a checkpoint before anything is done with it."""
