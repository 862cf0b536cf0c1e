"""What a run guarantees: published numbers reproduced, proven ones computed, and kept on record."""
