"""Other people's protections, as described and with the budget that holds for them."""
