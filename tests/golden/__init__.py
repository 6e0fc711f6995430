"""Golden vectors, and the checks shared by them and the examples of the wire format."""
