/* Stacks that were read: one round for a dump, many for a profile. Each stack is kept once.
 *
 * Not thread-safe. Bounded: what does not fit is counted in `dropped`.
 */
#ifndef MU_STACK_RECORD_H
#define MU_STACK_RECORD_H

#include "base/error.h"
#include "process_stacks/frame_names.h"
#include "process_stacks/stack_reader.h"
#include "process_stacks/walk.h"

#include <stdint.h>
#include <stdio.h>

enum {
    MU_STACK_SAMPLES_MAX = 4 * 1024 * 1024,
    MU_STACK_IDS_MAX = 16 * 1024 * 1024, /* frames of all stacks */
};

enum mu_stack_flag { MU_STACK_TORN = 1, MU_STACK_CUT = 2 };

struct mu_stack_sample {
    int64_t time_ns; /* CLOCK_REALTIME, with the offset that the user set */
    uint32_t tid;
    uint32_t stack; /* number, from 1 */
    uint32_t flags; /* of enum mu_stack_flag */
};

struct mu_stack_span {
    uint32_t first, count; /* within `ids` */
};

struct mu_stack_record {
    const struct mu_stack_reader *reader; /* borrowed */
    struct mu_own_memory memory;
    struct mu_walk *walk; /* owned */
    struct mu_frame_names names;
    uint32_t *ids; /* owned: places of frames, innermost first */
    uint32_t id_count, id_capacity;
    struct mu_stack_span *stacks; /* owned; number 1 is stacks[0] */
    uint32_t stack_count, stack_capacity;
    struct mu_hash_table stack_table;
    struct mu_stack_sample *samples; /* owned */
    uint32_t sample_count, sample_capacity;
    uint64_t rounds, torn, cut, incomplete, dropped;
    int64_t spent_ns; /* on all rounds */
};

/* What the file says of where the stacks are from. All borrowed. */
struct mu_stack_origin {
    const char *id, *kind, *label, *host;
    int rank;
    int64_t time_offset_ns, interval_ns;
};

MU_MUST_CHECK int mu_stack_record_init(struct mu_stack_record *record,
                                       const struct mu_stack_reader *reader, struct mu_error *err);
void mu_stack_record_reset(struct mu_stack_record *record);

/* Reads the stacks of all threads once. */
void mu_stack_record_round(struct mu_stack_record *record, int64_t time_offset_ns);

/* Writes all as one JSON object and a line end. The caller checks the stream for errors. */
void mu_stack_record_write(const struct mu_stack_record *record,
                           const struct mu_stack_origin *origin, FILE *out);

#endif
