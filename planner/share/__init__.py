"""Several jobs on one cluster: what each gets of it, with a proof; and what two do that take turns on its devices."""
