"""Intervals, paired tests, verdicts and rankings over seeds."""
