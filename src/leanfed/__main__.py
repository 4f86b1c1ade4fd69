"""`python -m leanfed`, the same as `leanfed`."""

from leanfed.interpreter import leave_current_folder

leave_current_folder()  # before anything that a file there could stand in for

from leanfed.cli.app import main  # noqa: E402

main()
