"""How values are drawn, one figure a module.

Enter by `registry.PLOTS`: a name -> what draws and what writes the csv.
"""
