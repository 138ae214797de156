"""What runs beside the training loop."""
