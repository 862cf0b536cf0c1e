"""The paper's tables and figures, and what is beyond them, each as one command."""
