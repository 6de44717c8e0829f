from transformer.runs.logs import Progress
