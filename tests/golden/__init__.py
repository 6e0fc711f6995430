"""Golden vectors, and the checks that they and the examples of the wire format go through."""
