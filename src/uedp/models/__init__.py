"""Language models and classifiers: our own, and any that Transformers can load."""
