"""`python -m orlog.cli`: the same as `orlog`."""

from orlog.cli import main

main()
