"""Whether shortcuts in Thunder's tracing leave every trace as it is, to the letter."""
