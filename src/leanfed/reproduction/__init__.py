"""What we claim: the catalogue of the paper's tables and figures, our runs of them, and who is right."""
