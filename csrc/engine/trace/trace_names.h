/* Names of stages. Each is kept once, with the forms in which a trace writes it.
 *
 * At most MU_TRACE_NAMES_MAX names are kept. Beyond that mu_trace_names_get returns a name without
 * a number, which the caller releases with mu_trace_names_release (it does nothing for kept names).
 * Pointers are valid until then, or until mu_trace_names_reset. One thread at a time.
 */
#ifndef MU_TRACE_NAMES_H
#define MU_TRACE_NAMES_H

#include "base/hash_table.h"

enum { MU_TRACE_NAMES_MAX = 16384 };
enum { MU_NAME_UNNUMBERED = -1 };
enum { MU_NAME_PADDING = 16 }; /* readable bytes from the start of `json` on, at least */

struct mu_trace_name {
    int number; /* from 0, or MU_NAME_UNNUMBERED */
    int wanted; /* 1, or 0 when the user's filter leaves it out */
    uint64_t hash;
    uint32_t raw_length, clean_length, json_length;
    size_t bad_bytes;  /* how many were not UTF-8 */
    const char *raw;   /* as in the file */
    const char *clean; /* valid UTF-8 */
    const char *json;  /* clean, escaped, without quotes */
};

/* Whether a stage of this name is wanted. Called once for each name, on the converting thread. */
typedef int (*mu_name_filter)(void *context, const char *name, size_t length);

struct mu_trace_names {
    struct mu_hash_table by_bytes; /* a name's number plus one */
    struct mu_trace_name **all;    /* owned */
    int count, capacity;
    struct mu_trace_name *last; /* borrowed; a kept one: END mostly follows START */
    mu_name_filter filter;      /* may be NULL */
    void *filter_context;
};

MU_MUST_CHECK int mu_trace_names_init(struct mu_trace_names *names, struct mu_error *err);
void mu_trace_names_reset(struct mu_trace_names *names);

/* NULL when memory is out. */
struct mu_trace_name *mu_trace_names_get(struct mu_trace_names *names, const char *text,
                                         size_t length);
void mu_trace_names_release(struct mu_trace_name *name);

static inline int mu_trace_name_is(const struct mu_trace_name *name, const char *text,
                                   size_t length) {
    if (name->raw_length != length) {
        return 0;
    }
    if (length >= 8 && length <= 16) { /* two words that may overlap, without a call */
        uint64_t first[2], last[2];
        memcpy(&first[0], name->raw, 8);
        memcpy(&first[1], text, 8);
        memcpy(&last[0], name->raw + length - 8, 8);
        memcpy(&last[1], text + length - 8, 8);
        return first[0] == first[1] && last[0] == last[1];
    }
    return memcmp(name->raw, text, length) == 0;
}

#endif
