"""How things go wrong: a catalogue of symptoms, and the matcher that looks logs and facts up in it."""
