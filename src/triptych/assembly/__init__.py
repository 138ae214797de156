"""From settings or a checkpoint to network, data and task."""
