"""What a training minimises, one module a family of papers. Enter by `registry.LOSSES`.

One loss a module: the paper's equation, mining, margins, temperature, proxies and class weights, options and their
checks.

Types and words: `Loss`, `ParameterGroup`, `LinearClassifier`, `Margin`, `ProxyNCA`, `SupCon`; anchors, negatives,
logits, scale, distances, embeddings (B, D).
"""
