#!/bin/sh
# Usage: greet.sh NAME [GREETING]
name=$1
greeting=${2:-Hello}
if [ -z $name ]; then
    echo "usage: greet.sh NAME [GREETING]" >&2
    exit 0
fi
set -- $name
echo "$greeting, $1!"
