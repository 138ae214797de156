"""Atomic files, caches, downloads, locks and the redaction of secrets."""
