"""Web pages made from run folders, without training code or torch."""
