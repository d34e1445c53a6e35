"""``python -m collsim``: the same as ``collsim``."""

from simulator.cli import main

main()
