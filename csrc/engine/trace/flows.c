/* Pairs the two ends of arrows.
 *
 * An END takes the last START of its name and id in its own rank that still waits. Where none does,
 * it takes that of another rank in the same step: both are then written under a number that is made
 * of name, id and step. So an id may be used again in later steps, and by all ranks for their own
 * arrows. Readers join all events of one number, so a START is written when it is known which
 * number it has.
 */
#include "trace/convert_internal.h"

#include <stdlib.h>

struct mu_flow {             /* a START that waits */
    struct mu_event_row row; /* its texts are in `text` */
    struct mu_track *track;  /* borrowed */
    char *text;              /* owned */
};

static uint64_t key_of(const struct mu_event_row *row) {
    return mu_hash_u64(row->name->hash ^ mu_hash_u64((uint64_t)row->metadata.id + 1)) | 1;
}

static uint64_t number_of_all_ranks(const struct mu_event_row *row) {
    return mu_hash_u64(key_of(row) ^ mu_hash_u64((uint64_t)row->step + 1));
}

static uint64_t new_number(struct mu_converter *converter, const struct mu_track *track) {
    return mu_hash_u64((uint64_t)track->process->uuid << 40 ^ ++converter->flow_count);
}

static void write_end(struct mu_converter *converter, struct mu_track *track,
                      const struct mu_event_row *row, uint64_t number) {
    struct mu_trace_event event;
    mu_fill_instant(&event, row);
    converter->writer.ops->flow(&converter->writer, track, &event, number,
                                row->type == MU_EVENT_FLOW_END);
    converter->counts.flows++;
}

static void free_flow(struct mu_flow *flow) {
    free(flow->text);
    free(flow);
}

static void give_up(struct mu_converter *converter, struct mu_flow *flow) {
    write_end(converter, flow->track, &flow->row, number_of_all_ranks(&flow->row));
    free_flow(flow);
}

static struct mu_flow *copy_start(struct mu_converter *converter, struct mu_track *track,
                                  const struct mu_event_row *row) {
    struct mu_flow *flow = malloc(sizeof(*flow));
    size_t machine = row->machine.length, metadata = row->metadata_text.length;
    char *text = malloc(machine + metadata + 1);
    if (flow == NULL || text == NULL) {
        mu_error_no_memory(&converter->error, "the start of an arrow");
        free(flow);
        free(text);
        return NULL;
    }
    *flow = (struct mu_flow){.row = *row, .track = track, .text = text};
    if (machine > 0) {
        memcpy(text, row->machine.text, machine);
    }
    if (metadata > 0) {
        memcpy(text + machine, row->metadata_text.text, metadata);
    }
    flow->row.machine = (struct mu_span){text, machine};
    flow->row.metadata_text = (struct mu_span){text + machine, metadata};
    mu_metadata_parse(flow->row.metadata_text, &flow->row.metadata);
    return flow;
}

static void keep_start(struct mu_converter *converter, struct mu_track *track,
                       const struct mu_event_row *row) {
    uint64_t key = key_of(row);
    struct mu_flow *before = mu_id_map_remove(&converter->open_flows, key);
    if (before != NULL) {
        give_up(converter, before);
    }
    if (converter->open_flows.count >= MU_PENDING_MAX) {
        mu_flows_finish(converter);
    }
    struct mu_flow *flow = copy_start(converter, track, row);
    if (flow != NULL &&
        mu_id_map_put(&converter->open_flows, key, flow, &converter->error) != MU_OK) {
        free_flow(flow);
    }
}

void mu_flow_row(struct mu_converter *converter, struct mu_track *track,
                 const struct mu_event_row *row) {
    if (row->type == MU_EVENT_FLOW_START) {
        int is_kept = row->name->number >= 0 && !converter->writer.ops->begins_at_start;
        if (is_kept) {
            keep_start(converter, track, row);
        } else { /* the name is gone with its row, or rows are written as they come */
            write_end(converter, track, row, number_of_all_ranks(row));
        }
        return;
    }
    struct mu_flow *flow = mu_id_map_remove(&converter->open_flows, key_of(row));
    uint64_t number = flow == NULL ? number_of_all_ranks(row) : new_number(converter, track);
    if (flow != NULL) {
        write_end(converter, flow->track, &flow->row, number);
        free_flow(flow);
    }
    write_end(converter, track, row, number);
}

static void empty(struct mu_converter *converter, int is_written) {
    struct mu_id_map *map = &converter->open_flows;
    for (size_t i = 0; map->slots != NULL && i <= map->mask; i++) {
        struct mu_flow *flow = map->slots[i].key != 0 ? map->slots[i].value : NULL;
        if (flow != NULL && is_written) {
            give_up(converter, flow);
        } else if (flow != NULL) {
            free_flow(flow);
        }
        map->slots[i].key = 0;
    }
    map->count = 0;
}

void mu_flows_finish(struct mu_converter *converter) {
    empty(converter, 1);
}

void mu_flows_reset(struct mu_converter *converter) {
    empty(converter, 0);
}
