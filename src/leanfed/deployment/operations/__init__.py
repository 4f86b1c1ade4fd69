"""How a fleet is set up, started, watched and stopped."""
