"""A study as a text, Markdown or a page. Reads records only."""
