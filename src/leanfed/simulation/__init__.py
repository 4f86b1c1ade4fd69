"""A virtual world: clients with data, rounds that train them, checkpoints that survive."""
