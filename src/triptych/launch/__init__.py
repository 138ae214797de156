"""Starts sweep jobs and ranks as separate processes, locally or with SLURM, and handles the signals that stop them."""
