from transformer.runs.logs import MetricsWriter, read_metrics
