#include <string.h>
#include "trim.h"

char *trim(char *text) {
    while (*text == ' ')
        text++;
    char *end = text + strlen(text) - 1;
    while (*end == ' ')
        end--;
    end[1] = '\0';
    return text;
}
