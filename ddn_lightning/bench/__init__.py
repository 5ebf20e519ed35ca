"""What a step costs on the machine at hand."""
