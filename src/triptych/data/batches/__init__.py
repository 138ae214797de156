"""From examples to batches: samplers, padding, packing, and windows of long texts."""
