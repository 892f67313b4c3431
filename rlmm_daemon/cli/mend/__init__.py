"""Commands for bad days: what is damaged, lost or left behind."""
