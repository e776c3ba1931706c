"""Inputs, references, and how far answers may be from them."""
