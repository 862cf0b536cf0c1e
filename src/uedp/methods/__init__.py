"""One module a method, and the registry that everything else asks."""
