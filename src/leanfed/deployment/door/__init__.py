"""The one port that nodes reach: who may pass, and the log of who did."""
