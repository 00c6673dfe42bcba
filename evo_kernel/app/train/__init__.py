"""What `train` commands run: collecting transitions, examples, rewards by the judge."""
