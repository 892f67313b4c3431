"""Questions and orders of people: status, explain, recovery, metrics, and the admin port.

It refuses to decide what is true: it asks the other rooms, and orders what they offer.
"""
