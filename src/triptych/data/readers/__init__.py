"""Files to lines, rows, fields and long texts."""
