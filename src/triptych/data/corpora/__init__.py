"""Sources of examples: synthetic corpora, files in common formats, and datasets of the Hugging Face Hub."""
