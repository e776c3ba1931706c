"""Reads a Triton model repository, and edits config text. Changes nothing on disk."""
