#include "process_stacks/stack_record.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { CAPACITY_FIRST = 64 };

int mu_stack_record_init(struct mu_stack_record *record, const struct mu_stack_reader *reader,
                         struct mu_error *err) {
    memset(record, 0, sizeof(*record));
    record->reader = reader;
    mu_own_memory_open(&record->memory);
    record->walk = malloc(sizeof(*record->walk));
    if (record->walk == NULL) {
        return mu_error_no_memory(err, "stacks");
    }
    record->walk->layout = &reader->layout;
    record->walk->memory = &record->memory;
    int code = mu_frame_names_init(&record->names, err);
    if (code == MU_OK) {
        code = mu_hash_table_init(&record->stack_table, CAPACITY_FIRST, err);
    }
    if (code != MU_OK) {
        mu_stack_record_reset(record);
    }
    return code;
}

void mu_stack_record_reset(struct mu_stack_record *record) {
    mu_own_memory_close(&record->memory);
    mu_frame_names_reset(&record->names);
    mu_hash_table_reset(&record->stack_table);
    free(record->walk);
    free(record->ids);
    free(record->stacks);
    free(record->samples);
    record->walk = NULL;
    record->ids = NULL;
    record->stacks = NULL;
    record->samples = NULL;
}

/* Makes room for `more` items; false when there is none. */
static bool reserve(void **items, uint32_t count, uint32_t more, uint32_t *capacity, uint32_t most,
                    size_t item_bytes) {
    uint32_t wanted = *capacity == 0 ? CAPACITY_FIRST : *capacity;
    if (more > most - count) {
        return false;
    }
    while (wanted < count + more) {
        wanted *= 2;
    }
    if (wanted == *capacity) {
        return true;
    }
    void *grown = realloc(*items, (size_t)wanted * item_bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *capacity = wanted;
    return true;
}

static bool reserve_ids(struct mu_stack_record *record, uint32_t more) {
    void *items = record->ids;
    bool has_room = reserve(&items, record->id_count, more, &record->id_capacity, MU_STACK_IDS_MAX,
                            sizeof(*record->ids));
    record->ids = items;
    return has_room;
}

static bool reserve_stack(struct mu_stack_record *record) {
    void *items = record->stacks;
    bool has_room = reserve(&items, record->stack_count, 1, &record->stack_capacity,
                            MU_STACK_IDS_MAX, sizeof(*record->stacks));
    record->stacks = items;
    return has_room && mu_hash_table_reserve(&record->stack_table, NULL) == MU_OK;
}

static bool reserve_sample(struct mu_stack_record *record) {
    void *items = record->samples;
    bool has_room = reserve(&items, record->sample_count, 1, &record->sample_capacity,
                            MU_STACK_SAMPLES_MAX, sizeof(*record->samples));
    record->samples = items;
    return has_room;
}

struct wanted {
    const uint32_t *numbers;
    uint32_t count;
};

static bool same_stack(const void *keys, uint32_t number, const void *key) {
    const struct mu_stack_record *record = keys;
    const struct wanted *wanted = key;
    struct mu_stack_span span = record->stacks[number - 1];
    return span.count == wanted->count &&
           memcmp(record->ids + span.first, wanted->numbers, span.count * sizeof(uint32_t)) == 0;
}

/* The number of the stack; 0 when there is no room for it. */
static uint32_t stack_number(struct mu_stack_record *record, const uint32_t *numbers,
                             uint32_t count) {
    struct wanted wanted = {numbers, count};
    uint64_t hash = mu_hash_bytes((const char *)numbers, count * sizeof(*numbers));
    if (!reserve_ids(record, count) || !reserve_stack(record)) {
        return 0;
    }
    uint32_t found = mu_hash_table_find(&record->stack_table, hash, same_stack, record, &wanted);
    if (found != 0) {
        return found;
    }
    memcpy(record->ids + record->id_count, numbers, count * sizeof(*numbers));
    record->stacks[record->stack_count++] = (struct mu_stack_span){record->id_count, count};
    record->id_count += count;
    mu_hash_table_put(&record->stack_table, hash, record->stack_count);
    return record->stack_count;
}

static void add_sample(struct mu_stack_record *record, int64_t time_ns) {
    uint32_t numbers[MU_STACK_DEPTH_MAX];
    const struct mu_raw_stack *stack = &record->walk->stack;
    mu_frame_names_of(&record->names, &record->reader->layout, &record->memory, stack, numbers);
    uint32_t number = stack_number(record, numbers, stack->count);
    if (number == 0 || !reserve_sample(record)) {
        record->dropped++;
        return;
    }
    record->torn += stack->torn;
    record->cut += stack->cut;
    record->samples[record->sample_count++] = (struct mu_stack_sample){
        .time_ns = time_ns,
        .tid = (uint32_t)stack->tid,
        .stack = number,
        .flags = (stack->torn ? MU_STACK_TORN : 0) | (stack->cut ? MU_STACK_CUT : 0),
    };
}

void mu_stack_record_round(struct mu_stack_record *record, int64_t time_offset_ns) {
    struct mu_walk *walk = record->walk;
    int64_t began = mu_clock_monotonic_ns();
    mu_walk_list(walk);
    record->rounds++;
    record->incomplete += walk->incomplete;
    for (uint32_t i = 0; i < walk->thread_count; i++) {
        if (mu_walk_stack(walk, &walk->threads[i])) {
            add_sample(record, mu_clock_ns(CLOCK_REALTIME) + time_offset_ns);
        }
    }
    record->spent_ns += mu_clock_monotonic_ns() - began;
}
