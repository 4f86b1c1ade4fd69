"""Learning tasks: data sets, their partition over clients, models, and the split into base and head."""
