"""Who gets what: the joint allocation of k, r and bandwidth (no torch)."""
