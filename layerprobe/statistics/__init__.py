"""How sure a number is: a method a module, on arrays.

By `units`, `bootstrap`, `all_pairs`, `jackknife`, `seeds` or `choice`.

Student's t for means, rates of pairs, bootstrap, jackknife, Holm's correction, groups of means, t intervals over seeds,
draws of equally many classes and images, the rule of a choice, whether to switch, by halves of the classes, differences
within classes: arrays -> intervals.

Types and words: `UnitSums`, `Judged`, `Advised`; units, sums, variances, resamples,
statements.
"""
