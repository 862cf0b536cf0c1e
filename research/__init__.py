"""The paper's tables and figures, its baselines, and further measurements, one command each."""
