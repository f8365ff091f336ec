#include <stdio.h>
#include <string.h>
#include "trim.h"

static int failed;

static void check(const char *name, const char *text, const char *wanted) {
    char buffer[64] = {'!', ' ', 0};
    strcpy(buffer + 2, text);
    char *got = trim(buffer + 2);
    if (strcmp(got, wanted) == 0 && buffer[0] == '!' && buffer[1] == ' ') {
        printf("ok: %s\n", name);
    } else {
        printf("FAIL: %s: wanted '%s', got '%s'\n", name, wanted, got);
        failed = 1;
    }
}

int main(void) {
    check("plain", "a b", "a b");
    check("blanks", "  a b  ", "a b");
    check("tabs", "\t a\n", "a");
    check("only blanks", "   ", "");
    check("empty", "", "");
    return failed;
}
