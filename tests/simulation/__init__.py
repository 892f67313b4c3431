"""Deterministic simulation: the daemon's own code, unmodified, on a loop, disk and clock of ours.

One seed decides everything: which faults exist in this run (the swarm draw), the order of ready
tasks, how long each disk call takes, where the process dies and what the power loss takes with it.
The same seed gives the same trace in any process, whatever `PYTHONHASHSEED` says.

``loop``, ``disk`` and ``clock`` are the machine, ``beside`` another one in the same world;
``world`` gives it lives and crashes; a scenario (``event_log``, ``manager``, ``kafka``) runs the
product on it, judged by an oracle of its own;
``mutants`` plants known bugs that the scenarios must find; ``run`` is the command line.
"""
