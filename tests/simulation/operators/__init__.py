"""Operators beside a daemon whose files decay: every order, at any moment, judged by the objects.

truth     what was acknowledged, which losses were accepted, and what may therefore go
bucket    the storage of all lives; each removal is judged when it takes effect
rot       damage to log, state directory and marker between two lives
calamity  whole segments, objects, and machines lost
daemon    one life of the daemon, wired as the product wires it, without a socket
people    operators: who follow what is named next, and who type whatever comes to mind
explaining operators who ask `rlmm explain`, and follow that
stopped   commands that are typed while the daemon is stopped
clients   what brokers ask for
clone     the same machine once more, under the same broker id
scenario  lives, clients and oracles
"""
