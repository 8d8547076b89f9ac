"""What each detour of Thunder's tracing costs, as its shortcut is taken out again."""
