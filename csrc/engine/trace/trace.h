/* The parts of a trace, and the table of functions that writes one.
 *
 * A converter reads rows and calls a writer; each belongs to one thread, with its own sink, and
 * several may feed one output. `mu_trace_ids` gives numbers that are unique over all of them. Times
 * are Unix nanoseconds; a trace states them relative to `base_ns`.
 */
#ifndef MU_TRACE_H
#define MU_TRACE_H

#include "csv/metadata.h"
#include "trace/nest.h"
#include "trace/notes.h"
#include "trace/sink.h"
#include "trace/trace_names.h"

#include <stdatomic.h>

struct mu_trace_ids {
    _Atomic uint32_t next_track;   /* from 1: track uuid and packet sequence of a protobuf trace */
    _Atomic uint32_t next_process; /* for processes beyond the numbers that a rank has */
};

struct mu_process {
    struct mu_process *next;
    int64_t pid; /* in the trace: unique, made from the rank */
    int64_t rank;
    int64_t attempt; /* -1: no my_utils.process row has said it */
    int64_t real_pid;
    int64_t node_high; /* of its node ids, see MU_NODE_SHIFT; -1: none has come */
    uint32_t uuid;
    int announced;
    int is_one_of_many; /* the output holds other ranks, or other processes of this one */
    uint32_t thread_count, other_count;
    uint32_t next_tid;           /* for tracks that are no thread */
    struct mu_track *tracks;     /* owned, newest first */
    struct mu_track *main_track; /* borrowed: steps follow its rows */
    int has_step;
    int64_t step, step_begin_ns;
    int64_t last_ns;
    char name[320]; /* "host rank 3"; valid UTF-8 */
    char label[128];
};

enum mu_track_kind {
    MU_TRACK_STEPS,
    MU_TRACK_THREAD,
    MU_TRACK_CUDA,
    MU_TRACK_COUNTER,
    MU_TRACK_ASYNC,
};

/* Where a track is in its process: steps, threads as they come, then streams. */
enum { MU_TRACK_ORDER_STEPS = 0, MU_TRACK_ORDER_FIRST = 1, MU_TRACK_ORDER_OTHER = 100000 };

struct mu_open;

struct mu_track {
    struct mu_track *next, *next_same_key;
    struct mu_process *process; /* borrowed */
    enum mu_track_kind kind;
    int64_t key; /* tid of a thread, id of a stream, hash of a counter's or async name; lookup */
    int64_t tid; /* in the trace */
    uint32_t order;
    char tag[128];
    char name[256]; /* valid UTF-8 */
    /* of the converter */
    struct mu_open *top; /* innermost open stage */
    int kept_count;      /* stages that ended under an open one */
    int64_t last_ns;
    struct mu_track *overflow; /* the next track for what does not fit on this one */
    struct mu_more_tracks
        *more;            /* owned; of the first track, when there are many overflow tracks */
    struct mu_nest *nest; /* owned; tracks whose slices are not known to nest */
    /* of the writer */
    uint32_t uuid;
    int64_t clock_ns;      /* protobuf: the delta clock */
    uint64_t *names_known; /* owned; bit n: name n is interned in this sequence */
    char prefix[96];       /* JSON: what each slice of the track starts with */
    uint32_t prefix_length;
};

enum mu_field_unit { MU_FIELD_MS, MU_FIELD_TEXT };

struct mu_field { /* one more argument, known to the converter */
    const char *key;
    enum mu_field_unit unit;
    int64_t ns;          /* with MU_FIELD_MS; written as milliseconds with six decimals */
    struct mu_span text; /* with MU_FIELD_TEXT; percent codes as they came */
};

enum { MU_FIELDS_MAX = 4 };

struct mu_trace_event {
    const struct mu_trace_name *name;
    int64_t begin_ns, end_ns; /* the same for what has no length */
    int64_t step, node, parent;
    int has_step; /* node and parent: -1 when absent */
    int field_count;
    struct mu_field fields[MU_FIELDS_MAX];
    struct mu_span user[2]; /* pairs of the user, END row first; percent codes as they came */
    /* for the layout of the seed */
    struct mu_span machine, metadata;
    int64_t duration_ns;
    int named_end; /* the end must name its stage: rows out of order */
};

struct mu_trace_writer;

struct mu_trace_ops {
    int begins_at_start; /* a stage is written at its START row, not at its END row */
    int eager_ties;      /* a stage is begun when another begins in it in the same nanosecond */
    void (*header)(struct mu_trace_writer *, struct mu_sink *);
    void (*trailer)(struct mu_trace_writer *, struct mu_sink *);
    void (*process)(struct mu_trace_writer *, struct mu_process *);
    void (*track)(struct mu_trace_writer *, struct mu_track *); /* again after a new name */
    void (*slice)(struct mu_trace_writer *, struct mu_track *, const struct mu_trace_event *);
    void (*slice_begin)(struct mu_trace_writer *, struct mu_track *, const struct mu_trace_event *);
    void (*slice_end)(struct mu_trace_writer *, struct mu_track *, const struct mu_trace_event *);
    void (*instant)(struct mu_trace_writer *, struct mu_track *, const struct mu_trace_event *);
    void (*counter)(struct mu_trace_writer *, struct mu_track *, int64_t at_ns,
                    struct mu_span number);
    void (*flow)(struct mu_trace_writer *, struct mu_track *, const struct mu_trace_event *,
                 uint64_t number, int is_end);
};

struct mu_trace_writer {
    const struct mu_trace_ops *ops;
    struct mu_sink sink;      /* owned */
    struct mu_trace_ids *ids; /* borrowed */
    int64_t base_ns;
    int with_args;
    int hides_ids;          /* steps and node ids mean nothing */
    struct mu_notes *notes; /* borrowed */
    uint64_t async_count;
    char *scratch[2]; /* owned */
    size_t scratch_size[2];
    size_t bad_bytes;
    int64_t step;       /* JSON: what step_text says */
    char step_text[48]; /* `,"step":N` */
    size_t step_length; /* 0: nothing yet */
    void *c_locale;     /* owned; protobuf: numbers to doubles whatever the program's locale */
};

/* `output` collects what all writers write. */
MU_MUST_CHECK int mu_trace_writer_init(struct mu_trace_writer *writer,
                                       const struct mu_trace_ops *ops,
                                       struct mu_shared_output *output, struct mu_error *err);
void mu_trace_writer_reset(struct mu_trace_writer *writer);

/* Keys that the writers write themselves. A user's key of the same name gets a `_` at its end. */
int mu_trace_is_own_key(struct mu_span key);

/* Percent codes decoded, valid UTF-8, in scratch memory of the writer: place 0 or 1, each valid
 * until it is used again. Empty when memory is out. */
struct mu_span mu_trace_clean(struct mu_trace_writer *writer, struct mu_span text, int place);

/* Upper bound of the bytes that the event takes in any format. */
size_t mu_trace_event_bytes_max(const struct mu_trace_event *event);

extern const struct mu_trace_ops mu_trace_json_ops, mu_trace_seed_ops, mu_trace_perfetto_ops;

#endif
