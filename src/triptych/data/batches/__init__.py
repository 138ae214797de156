"""From examples to batches: samplers, padding and packing, windows of long texts."""
