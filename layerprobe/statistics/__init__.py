"""How sure a number is: a method a module, on arrays. By `means`, `bootstrap`, `jackknife`, `seeds` or `choice`."""
