#!/bin/sh
# Prints one line for each test; exits 1 if one fails.
failed=0
check() {
    if [ "$2" = "$3" ]; then echo "ok: $1"; else echo "FAIL: $1: wanted '$3', got '$2'"; failed=1; fi
}
check "one word" "$(sh greet.sh Ada 2>&1)" "Hello, Ada!"
check "two words" "$(sh greet.sh "Ada Lovelace" 2>&1)" "Hello, Ada Lovelace!"
check "other greeting" "$(sh greet.sh "Ada Lovelace" "Good day" 2>&1)" "Good day, Ada Lovelace!"
sh greet.sh >/dev/null 2>&1
check "no name is an error" "$?" "2"
exit $failed
