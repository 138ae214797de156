"""Sweep jobs and ranks as processes of their own, on this machine or by SLURM, and the signals that stop them."""
