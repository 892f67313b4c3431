"""A KRaft replica outside its consensus: its wire, the task that obeys the core, and its files."""
