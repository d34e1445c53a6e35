"""Node presets and network fabrics: one builder per file, hardware as data with sources."""
