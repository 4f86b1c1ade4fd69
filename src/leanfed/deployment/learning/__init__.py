"""What server and nodes of a fleet do in a round; free of keys and processes."""
