"""Explanations: from facts to a verdict, a cause, its evidence, and the command to type next."""
