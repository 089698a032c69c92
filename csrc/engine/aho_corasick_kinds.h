/* Kinds of bytes, for the two halves of aho_corasick.h. */
#ifndef MU_AHO_CORASICK_KINDS_H
#define MU_AHO_CORASICK_KINDS_H

#include <stdbool.h>

enum {
    MU_AC_NAME = 1,  /* a letter, a digit or an underscore */
    MU_AC_BEGINS = 2 /* some pattern begins with it */
};

static inline bool mu_is_name_byte(int byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '_';
}

#endif
