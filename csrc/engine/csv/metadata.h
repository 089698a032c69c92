/* The metadata column: `key=value` pairs joined by commas. The project's own pairs come first, in
 * the order of mu_metadata_keys. The first other key starts the user's part. All pointers are
 * borrowed from the text.
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

enum mu_metadata_form {
    MU_METADATA_WHOLE,   /* int64_t; -1 for what is not a whole number */
    MU_METADATA_MS,      /* int64_t, in ns */
    MU_METADATA_SECONDS, /* int64_t, in ns */
    MU_METADATA_TEXT,    /* struct mu_span */
    MU_METADATA_FLAG,    /* no field: whatever the value is */
    MU_METADATA_SHOWN,   /* no field: it starts the user's part */
};

/* An own key. What it says goes into the field at `offset`; `flag` or `bad_flag` into `has`. */
struct mu_metadata_key {
    const char *name;
    size_t length; /* of the name */
    enum mu_metadata_form form;
    size_t offset; /* in struct mu_metadata */
    unsigned flag;
    unsigned bad_flag; /* for a value that cannot be parsed */
};

#define MU_METADATA_NAME(text) .name = (text), .length = sizeof(text) - 1
#define MU_METADATA_FIELD(field) .offset = offsetof(struct mu_metadata, field)

static const struct mu_metadata_key mu_metadata_keys[] = {
    {MU_METADATA_NAME("node_id"), MU_METADATA_WHOLE, MU_METADATA_FIELD(node)},
    {MU_METADATA_NAME("parent_id"), MU_METADATA_WHOLE, MU_METADATA_FIELD(parent)},
    {MU_METADATA_NAME("tid"), MU_METADATA_WHOLE, MU_METADATA_FIELD(tid)},
    {MU_METADATA_NAME("tag"), MU_METADATA_TEXT, MU_METADATA_FIELD(tag)},
    {MU_METADATA_NAME("repeated"), MU_METADATA_FLAG, .flag = MU_HAS_REPEATED},
    {MU_METADATA_NAME("closed"), MU_METADATA_TEXT, MU_METADATA_FIELD(closed)},
    {MU_METADATA_NAME("cuda_ms"), MU_METADATA_MS, MU_METADATA_FIELD(cuda_ns), MU_HAS_CUDA_MS,
     MU_HAS_BAD_CUDA_MS},
    {MU_METADATA_NAME("cuda_ts"), MU_METADATA_SECONDS, MU_METADATA_FIELD(cuda_begin_ns),
     MU_HAS_CUDA_TS},
    {MU_METADATA_NAME("cuda_err_ms"), MU_METADATA_MS, MU_METADATA_FIELD(cuda_error_ns),
     MU_HAS_CUDA_ERR},
    {MU_METADATA_NAME("stream"), MU_METADATA_WHOLE, MU_METADATA_FIELD(stream)},
    {MU_METADATA_NAME("id"), MU_METADATA_WHOLE, MU_METADATA_FIELD(id)},
    {MU_METADATA_NAME("doubtful"), MU_METADATA_SHOWN},
};

enum { MU_METADATA_KEY_COUNT = sizeof(mu_metadata_keys) / sizeof(mu_metadata_keys[0]) };

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
