#!/bin/sh
# Runs the tests. Nothing is written to the repository.
exec python3 -B -m unittest -q 2>&1
