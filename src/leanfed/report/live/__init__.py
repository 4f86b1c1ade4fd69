"""A web server for the pages of runs in progress."""
