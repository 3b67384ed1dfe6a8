"""What a served model reads and answers, without the code that trained it."""
