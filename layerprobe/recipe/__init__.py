"""Which experiment is meant. Enter by `recipe.load_recipe`: a TOML file -> a checked, frozen `Recipe`."""
