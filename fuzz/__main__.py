"""Run the fuzzer."""

from fuzz.run import main

if __name__ == "__main__":
    raise SystemExit(main())
