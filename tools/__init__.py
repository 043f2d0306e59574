"""Programs of the makers: what ``make`` runs beside the tests."""
