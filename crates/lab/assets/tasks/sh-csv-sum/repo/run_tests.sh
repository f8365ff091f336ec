#!/bin/sh
failed=0
check() {
    if [ "$2" = "$3" ]; then echo "ok: $1"; else echo "FAIL: $1: wanted '$3', got '$2'"; failed=1; fi
}
check "plain" "$(printf 'item,price\na,3\nb,4\n' | sh sum.sh 2 2>&1)" "7"
check "last line" "$(printf 'item,price\na,3\nb,4' | sh sum.sh 2 2>&1)" "7"
check "quoted comma" "$(printf 'item,price\n"nuts, bolts",10\nb,4\n' | sh sum.sh 2 2>&1)" "14"
exit $failed
