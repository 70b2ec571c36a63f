"""Numbers in, numbers out: the native kernels, their plain-torch reference, and `ops`, the door."""
