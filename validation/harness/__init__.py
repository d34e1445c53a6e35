"""The measuring harness: run collectives for real through torch.distributed, and time them."""
