"""Which pixels make two images similar at a layer: integrated gradients, Grad-CAM, and checks of both.

Which pixels make two images similar at a layer: integrated gradients with their completeness, Grad-CAM, correlation
with the maps of random weights.

Types and words: `ScoredLayer`, `Integrated`, `MapCall`; captum, baseline.
"""
