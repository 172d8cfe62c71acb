"""`python -m glmspark`."""

from glmspark.cli import main

if __name__ == "__main__":
    main()
