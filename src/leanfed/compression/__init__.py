"""What is cut: sparsification of gradients, pruning of heads, and the wire format."""
