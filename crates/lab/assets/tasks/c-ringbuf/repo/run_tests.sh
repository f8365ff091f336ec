#!/bin/sh
# Builds under /tmp and runs the tests.
out=$(mktemp)
cc -std=c99 -Wall -o "$out" ring.c test.c 2>&1 && "$out" 2>&1
status=$?
rm -f "$out"
exit $status
