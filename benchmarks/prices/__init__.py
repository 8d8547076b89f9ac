"""The price of each accelerator: its lines, the names of Thunder that it needs, and the seconds that it saves."""
