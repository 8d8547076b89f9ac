"""Policy and bytes: compiled templates in memory, what was counted, and the record on disk."""
