"""What the machine and the process give: errors, whole files, memory, signals, threads, progress.

Enter by the module of that name.
"""
