#!/bin/sh
failed=0
check() {
    if [ "$2" = "$3" ]; then echo "ok: $1"; else echo "FAIL: $1: wanted '$3', got '$2'"; failed=1; fi
}
check "prime limit" "$(perl primes.pl 13 | tail -1)" "6: 13"
check "other limit" "$(perl primes.pl 20 | tail -1)" "8: 19"
check "none" "$(perl primes.pl 1)" ""
exit $failed
