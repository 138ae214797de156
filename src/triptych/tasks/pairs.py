"""Two texts that are read as one."""
