"""Why two keys are not one: what differs between their ingredients. Pure; reads canonical texts and nothing else."""
