"""Where metrics go: a CSV file, W&B, TensorBoard."""
