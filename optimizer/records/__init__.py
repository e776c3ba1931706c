"""The project's words as frozen dataclasses. Standard library and NumPy only; nothing here does any work."""
