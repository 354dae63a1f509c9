"""How sure a number is: one method a module, on arrays. Enter by `bootstrap`, `jackknife`, `seeds` or `choice`."""
