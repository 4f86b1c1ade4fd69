"""`python -m leanfed`, the same as `leanfed`."""

from leanfed.cli.app import main

main()
