"""Events on their way to their topics: packed, sent, acknowledged, held while a topic is in trouble."""
