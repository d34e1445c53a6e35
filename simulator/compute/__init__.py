"""How long kernels take on a GPU."""
