"""Stands in for the generation of gym-donkeycar that dials: the surface that is used, no more."""
