"""Setup of a daemon beside a broker: what the broker's files say, what follows, who writes it.

`broker` judges what was read, `settings`, `properties` and `beside` render, none of them does IO;
`plan` reads and writes.
"""
