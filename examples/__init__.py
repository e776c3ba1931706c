"""What a user can run to see the optimizer at work."""
