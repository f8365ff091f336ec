#!/bin/sh
# Rotates a file of its own under /tmp and compares what is where.
dir=$(mktemp -d)
failed=0
check() {
    if [ "$2" = "$3" ]; then echo "ok: $1"; else echo "FAIL: $1: wanted '$3', got '$2'"; failed=1; fi
}
for n in one two three four five; do
    echo $n > "$dir/log"
    sh rotate.sh "$dir/log"
done
check "newest" "$(cat "$dir/log.1" 2>/dev/null)" "five"
check "middle" "$(cat "$dir/log.2" 2>/dev/null)" "four"
check "oldest" "$(cat "$dir/log.3" 2>/dev/null)" "three"
check "no fourth" "$(ls "$dir" | grep -c '^log.4$')" "0"
check "empty log" "$(wc -c < "$dir/log" | tr -d ' ')" "0"
rm -rf "$dir"
exit $failed
