"""The report: one HTML file about a run. Reads what the record has of it, and nothing else."""
