#!/bin/sh
# Usage: sum.sh COLUMN < FILE. Prints the sum of a column, header line left out.
column=$1
total=0
read -r header
while IFS= read -r line; do
    value=$(echo "$line" | cut -d, -f"$column")
    total=$((total + value))
done
echo "$total"
