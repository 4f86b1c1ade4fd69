"""`python -m leanfed.cli`, the same as `leanfed`."""

from leanfed.cli.app import main

main()
