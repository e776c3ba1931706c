"""Python-based backends and config fragments that this project puts behind a Triton server."""
