"""Compares runs by reading their run directories."""
