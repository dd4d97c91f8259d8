"""How models are trained and queried. A recipe is a value; see `plmia.training.recipes.recipe.Recipe`."""
