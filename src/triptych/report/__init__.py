"""The comparison of runs, from their directories alone."""
