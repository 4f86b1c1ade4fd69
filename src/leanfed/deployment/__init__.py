"""The real world: the same algorithm on Flower."""
