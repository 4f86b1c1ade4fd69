"""The batched engine: chunks of clients at once, through compiled kernels or torch alone."""
