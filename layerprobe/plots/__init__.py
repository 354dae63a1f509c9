"""How values are drawn, one figure a module.

Enter by `registry.PLOTS`: name -> `Plot`, which draws the figure and writes the CSV.
"""
