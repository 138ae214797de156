"""The callbacks of the Trainer."""
