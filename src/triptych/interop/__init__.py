"""Hugging Face folders in and out."""

from triptych.interop.networks import read_network, write_network

__all__ = ["read_network", "write_network"]
