"""Published model families, one file each: their settings and the names of their weights."""
