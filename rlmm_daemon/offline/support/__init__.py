"""A bundle for maintainers: whatever they would ask for, without secrets, beside any daemon."""
