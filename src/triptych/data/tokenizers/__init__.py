"""Text to token ids and back: trained tokenizers and pretrained ones."""
