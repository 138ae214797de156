"""A study: a question, predictions from theory, the runs that test them, and the findings."""
