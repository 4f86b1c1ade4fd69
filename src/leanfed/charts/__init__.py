"""Pictures from plain columns; no training code, no display."""
