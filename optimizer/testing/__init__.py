"""Equipment that tests and benchmarks of this project and of its users share. Small, and shipped."""
