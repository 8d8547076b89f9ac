"""Compilation ahead of use: of all requests in a store, and of a trace's regions while the process still traces."""
