"""``python -m simulator.cli``: the same as ``collsim``."""

from simulator.cli import main

main()
