"""Files: written whole or not at all, without secrets, kept, and fetched."""
