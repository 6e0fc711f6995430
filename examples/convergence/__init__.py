"""Convergence of small real models with compressed gradients, compared with dense gradients."""
