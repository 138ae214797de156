"""The loggers: CSV file, W&B, TensorBoard."""
