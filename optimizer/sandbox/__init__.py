"""Starts a Triton server of the study's own, loads candidates into it, and takes it down again."""
