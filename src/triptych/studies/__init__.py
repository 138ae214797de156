"""A study: a question, what theory predicts, the trainings that answer it, and what they found."""
