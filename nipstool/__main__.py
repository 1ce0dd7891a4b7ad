"""`python -m nipstool`, for torchrun and for environments whose scripts are not on PATH."""

from nipstool.cli import main

if __name__ == "__main__":
    main()
