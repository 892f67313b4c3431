"""The page that a browser is shown at the admin port, and the JSON that it asks for.

It changes nothing, and every answer is bounded: of many rows the first few come with their number.
"""
