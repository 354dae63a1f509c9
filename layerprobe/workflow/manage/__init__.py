"""What there is and whether it works: layers, data sets, the cache, the environment, a demonstration.

Enter by the module of the command.
"""
