"""Puts the rooms together from one configuration: the only room that names concrete adapters.

`adapters` answers which one stands behind which port, also for a command or a nightly job that
needs no daemon; `options` what the configuration's keys mean to each room; `daemon` what one
process is made of, and what is started, reloaded and drained in which order.
"""
