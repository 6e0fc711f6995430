"""Do models still learn? Methods of compression on small real models, beside dense gradients."""
