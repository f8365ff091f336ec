#!/bin/sh
# Usage: rotate.sh FILE. Keeps FILE.1 (newest) to FILE.3 (oldest).
file=$1
for i in 1 2 3; do
    next=$((i + 1))
    if [ -f "$file.$i" ]; then
        mv "$file.$i" "$file.$next"
    fi
done
mv "$file" "$file.1"
: > "$file"
