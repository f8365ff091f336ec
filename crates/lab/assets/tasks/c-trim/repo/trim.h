#ifndef TRIM_H
#define TRIM_H

/* Cuts white space off both ends, in place, and returns the new start. */
char *trim(char *text);

#endif
