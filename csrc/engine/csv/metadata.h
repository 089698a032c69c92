/* The metadata column: `key=value` pairs joined by commas. The project's own pairs come first.
 *
 * Own keys, in this order: node_id, parent_id, tid, tag, repeated, closed, cuda_ms, cuda_ts,
 * cuda_err_ms, stream, id. The first other key starts the user's part. All pointers are borrowed
 * from the text.
 */
#ifndef MU_METADATA_H
#define MU_METADATA_H

#include <stddef.h>
#include <stdint.h>

struct mu_span {
    const char *text;
    size_t length;
};

enum mu_metadata_has {
    MU_HAS_CUDA_MS = 1,
    MU_HAS_CUDA_TS = 2,
    MU_HAS_CUDA_ERR = 4,
    MU_HAS_BAD_CUDA_MS = 8, /* one that is not a number */
    MU_HAS_REPEATED = 16,   /* an older part has the row, too */
};

struct mu_metadata {
    int64_t node, parent, tid, stream, id; /* -1 when absent */
    unsigned has;                          /* enum mu_metadata_has */
    int64_t cuda_ns, cuda_begin_ns, cuda_error_ns;
    struct mu_span tag, closed, user; /* length 0 when absent */
};

enum mu_value_kind { MU_VALUE_STRING, MU_VALUE_INT, MU_VALUE_FLOAT, MU_VALUE_BOOL };

void mu_metadata_parse(struct mu_span text, struct mu_metadata *metadata);

/* Removes the next pair from `rest`; 0 when none is left. A piece without `=` gets the key
 * `metadata`. Percent codes are not decoded. */
int mu_metadata_next(struct mu_span *rest, struct mu_span *key, struct mu_span *value);

/* The value of the first pair with that key; 0 when there is none. */
int mu_metadata_find(struct mu_span pairs, const char *wanted, struct mu_span *value);

/* The same of a whole number; 0 also when the value is none. */
int mu_metadata_number(struct mu_span pairs, const char *wanted, int64_t *number);

/* Whether one of the pairs has that key. */
int mu_metadata_has_key(struct mu_span pairs, struct mu_span wanted);

/* The kind of a value in a trace: an integer of at most 18 digits, a number by the grammar of JSON,
 * true or false (also in Python's spelling), or text. */
enum mu_value_kind mu_metadata_kind(struct mu_span value);

int mu_span_equals(struct mu_span span, const char *text);

/* Whether the name is one of the tool's own: of those that begin with `my_utils.`. */
int mu_span_is_own(struct mu_span name);

#endif
