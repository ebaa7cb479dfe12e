"""`python -m dpaudit` is the command line."""

from dpaudit.cli import main

main()
