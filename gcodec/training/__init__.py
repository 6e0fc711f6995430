"""What holds state across the steps of training, over the wires between workers."""
