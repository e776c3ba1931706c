"""What only a GPU can show: scripts in resumable pieces, started by ``python -m tests.gpu.run``."""
