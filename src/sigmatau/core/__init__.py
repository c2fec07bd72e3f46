"""The mathematics of additive parameter decomposition, and the file it is kept in."""
