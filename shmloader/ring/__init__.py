"""The ring's memory: its layout, and how it is allocated."""
