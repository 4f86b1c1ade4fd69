"""Why: the convergence bound and its constants."""
