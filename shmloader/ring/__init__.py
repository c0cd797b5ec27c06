"""The ring's memory, and how it is asked for."""
