"""The module cannot be imported."""

raise ImportError("libnvinfer.so.11: cannot open shared object file: No such file or directory")
