"""`python -m dpaudit` is the command line."""

from dpaudit.commands.cli import main

main()
