"""collsim by its own name: the public names of `simulator`.

>>> import collsim
>>> collsim.run(node="4xH100", collective={"op": "all_reduce", "size": "1 MiB"}).rows[0].world_size
4
"""

from simulator import __version__, run

__all__ = ["__version__", "run"]
