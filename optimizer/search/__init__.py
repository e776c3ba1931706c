"""Which candidates to try, in which order, with how many pairs."""
