"""Hugging Face folders in and out."""

from triptych.interop.folders import import_folder, load_pretrained, save_pretrained
from triptych.interop.networks import read_network, write_network

__all__ = ["import_folder", "load_pretrained", "read_network", "save_pretrained", "write_network"]
