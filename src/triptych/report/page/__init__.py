"""The comparison as one HTML page."""
