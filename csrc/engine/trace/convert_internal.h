/* Shared by the files of the converter: convert.c (rows), stages.c (pairing), tracks.c (tracks).
 */
#ifndef MU_CONVERT_INTERNAL_H
#define MU_CONVERT_INTERNAL_H

#include "trace/converter.h"

struct mu_event_row {
    int type; /* enum mu_event_type */
    int64_t at_ns, step;
    uint64_t line;
    struct mu_trace_name *name; /* given back by the receiver when it is not kept */
    struct mu_span machine, duration, metadata_text;
    struct mu_metadata metadata;
};

/* A stage whose END has not come, or one that ended under an open one. */
struct mu_open {
    struct mu_open *below;                             /* on the stack of its track */
    struct mu_open *next_same_key, *previous_same_key; /* in open_by_key */
    struct mu_open *older, *newer;                     /* of all */
    uint64_t key;
    uint64_t row; /* its START's place among all rows */
    int64_t begin_ns, end_ns, step, node, parent;
    uint64_t line;
    struct mu_trace_name *name; /* owned when it has no number */
    struct mu_track *track;     /* borrowed */
    char *text;                 /* owned: the metadata of the START row, when it is needed later */
    size_t text_length;
    struct mu_span user; /* within text */
    unsigned in_map : 1, on_stack : 1, begun : 1, ended : 1, moved : 1, is_early : 1;
};

/* tracks.c: lookups never return NULL but when memory is out; the error is then in the converter.
 */
struct mu_process *mu_process_of(struct mu_converter *converter, int64_t node,
                                 struct mu_span machine);
void mu_process_row(struct mu_converter *converter, const struct mu_event_row *row);
void mu_thread_row(struct mu_converter *converter, const struct mu_event_row *row);
struct mu_track *mu_track_of_thread(struct mu_converter *converter, struct mu_process *process,
                                    int64_t tid, struct mu_span tag);
struct mu_track *mu_track_of_kind(struct mu_converter *converter, struct mu_process *process,
                                  enum mu_track_kind kind, int64_t key, const char *name);
struct mu_track *mu_track_with_room(struct mu_converter *converter, struct mu_track *track,
                                    struct mu_interval interval);
void mu_tracks_reset(struct mu_converter *converter);

/* stages.c */
void mu_stage_start(struct mu_converter *converter, struct mu_track *track,
                    const struct mu_event_row *row);
/* Whether the START was in an older part already: each part repeats those of its open stages. */
int mu_stage_is_repeated(struct mu_converter *converter, const struct mu_track *track,
                         const struct mu_event_row *row);
void mu_stage_end(struct mu_converter *converter, struct mu_track *track,
                  const struct mu_event_row *row);
void mu_async_start(struct mu_converter *converter, struct mu_track *track,
                    const struct mu_event_row *row);
void mu_async_end(struct mu_converter *converter, struct mu_track *track,
                  const struct mu_event_row *row);
void mu_stages_finish(struct mu_converter *converter);
void mu_stages_reset(struct mu_converter *converter);
void mu_step_marker(struct mu_converter *converter, struct mu_track *track,
                    const struct mu_event_row *row);
void mu_step_marker_close(struct mu_converter *converter, struct mu_process *process,
                          int64_t end_ns);
int mu_row_is_wanted(const struct mu_converter *converter, const struct mu_trace_name *name,
                     int64_t step);

/* flows.c */
void mu_flow_row(struct mu_converter *converter, struct mu_track *track,
                 const struct mu_event_row *row);
void mu_flows_finish(struct mu_converter *converter); /* writes the STARTs that no END has met */
void mu_flows_reset(struct mu_converter *converter);

static inline void mu_fill_instant(struct mu_trace_event *event, const struct mu_event_row *row) {
    *event = (struct mu_trace_event){
        .name = row->name,
        .begin_ns = row->at_ns,
        .end_ns = row->at_ns,
        .step = row->step,
        .has_step = 1,
        .node = row->metadata.node,
        .parent = row->metadata.parent,
        .user = {row->metadata.user},
        .machine = row->machine,
        .metadata = row->metadata_text,
    };
}

#endif
