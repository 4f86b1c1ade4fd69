"""The pages of runs that go on, over HTTP."""
