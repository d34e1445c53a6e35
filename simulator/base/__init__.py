"""Units, errors and the registry: everyone imports this room, it imports none."""
