"""Knobs, route expressions and their expansion: what may be tried. Builds and measures nothing."""
