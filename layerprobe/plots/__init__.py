"""How values are drawn, one figure a module.

Enter by `registry.PLOTS`: name -> `Plot`, which draws the figure and writes the CSV. What the figures share:

- `plot`: what a plot is, and the values that it may ask for; CSV
- `drawn_scores`: which layers and epochs of the scores are drawn, and the notes on them
- `figure`: panels, styles, labels, legends, files; `placing`: where labels stand
- `selected`: the star of the selected candidate

Values -> matplotlib figures: which series, points and epochs are drawn, panels, axes, labels and where they are
placed, colours, legends, chance levels, shortened names, the star of a selected candidate, csv.

Types and words: `Plot`, `PlotSource`, `PlotOptions`, `Drawing`, `Style`, `Track`, `Layer`, `Series`, `Label`,
`Method`, `Star`; floors, markers, inches.
"""
