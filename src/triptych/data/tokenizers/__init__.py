"""Text to ids and back: learned here, or published."""
