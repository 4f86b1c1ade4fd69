"""What we claim: settings, how they become runs, and how runs are compared."""
