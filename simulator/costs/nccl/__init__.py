"""What NCCL believes: its tuning model by version, from its published source."""
