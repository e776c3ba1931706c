"""Puts realistic load on a server and records what happened. Ranks nothing."""
