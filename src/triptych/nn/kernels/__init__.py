"""Losses that are faster than torch's, or need less memory."""
