"""The ways to carry the past, without parameters."""
