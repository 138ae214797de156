"""File readers: lines, rows, fields, images, audio and long texts."""
