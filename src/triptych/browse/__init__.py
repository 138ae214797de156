"""Finding things: what there is, what a setting means, what a shell completes, and the beginnings of one's own. None of
it trains, and what answers while one types needs no torch."""
