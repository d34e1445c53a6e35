"""The clock, the fluid network and the two levels of detail."""
