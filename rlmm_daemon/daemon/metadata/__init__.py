"""The SPI of KIP-405's remote log metadata manager, over the folds of the followed partitions.

It answers whether a broker's or a person's question may be answered now, and by which fold; it
refuses to know how a fold came to be (`following`) and who asked over which socket (`socket`).
"""
