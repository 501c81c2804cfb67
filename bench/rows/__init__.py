"""The rows of bench/first_touch.py: each module has those of one kind of program."""
