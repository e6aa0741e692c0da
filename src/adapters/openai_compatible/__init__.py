"""The chat completions dialect; each provider of it is a row in a table."""
