"""Reproduction of the paper's tables and figures: a catalogue, the runs it needs, and verdicts on the claims."""
