"""What people look at: plots, and later the privacy card and the report."""
