"""Assembles network, data and task from settings or a checkpoint."""
