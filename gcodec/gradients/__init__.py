"""Files of gradients: reading, writing and measuring them."""
