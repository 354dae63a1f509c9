"""How values are drawn, one figure a module.

Enter by `registry.PLOTS`: name -> `Plot`, which draws the figure and writes the CSV. What the figures share:

- `plot`: what a plot is, and the values that it may ask for
- `drawn_layers`: which layers and epochs of the scores are drawn
- `values`: scores as points, and the notes on them
- `figure`: panels, styles, labels, legends, files; `placing`: where labels stand
- `layer_axis`: the axis of layers, and the best one on it
- `selected`: the star of the selected candidate

Values -> matplotlib figures: which series, points and epochs are drawn, panels, axes, labels and where they are
placed, colours, legends, chance levels, shortened names, the star of a selected candidate, csv.

Types and words: `Plot`, `PlotSource`, `PlotOptions`, `Drawing`, `Style`, `Track`, `Point`, `Label`, `Reducer`,
`Star`; floors, markers, inches.
"""
