"""What gives examples: embedded corpora, files of one kind each, data sets of the Hub."""
