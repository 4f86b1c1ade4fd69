"""What a reader sees: pages made from run folders; no training code, no torch."""
