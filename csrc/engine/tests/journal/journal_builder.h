/* Journals made by hand, in memory: what a process would have left there, or what never could be.
 * Ticks are nanoseconds; Unix time is BUILT_REAL_NS later. The caller frees `bytes`. */
#ifndef MU_JOURNAL_BUILDER_H
#define MU_JOURNAL_BUILDER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "journal/journal_format.h"

static const int64_t BUILT_REAL_NS = 1750000000000000000;

struct builder {
    uint8_t *bytes; /* owned */
    size_t size;
    uint32_t blob_used;
    uint64_t next_node;
};

static inline struct mu_journal_header *built_header(const struct builder *builder) {
    return (void *)builder->bytes;
}

static inline struct mu_chunk_header *built_chunk(const struct builder *builder, uint32_t index) {
    return (void *)(builder->bytes + MU_CHUNKS_OFFSET + (size_t)index * MU_CHUNK_BYTES);
}

static inline struct mu_record *built_slot(struct mu_chunk_header *chunk, uint64_t position) {
    return (struct mu_record *)(void *)((uint8_t *)chunk + MU_CHUNK_HEADER_BYTES) +
           position % MU_RING_SLOTS;
}

static inline uint32_t build_string(struct builder *builder, const char *text) {
    struct mu_journal_header *header = built_header(builder);
    struct mu_string_entry *entries = (void *)(builder->bytes + MU_STRINGS_OFFSET);
    uint32_t index = atomic_load(&header->string_count);
    entries[index].offset = builder->blob_used;
    entries[index].length = (uint32_t)strlen(text);
    memcpy(builder->bytes + MU_BLOB_OFFSET + builder->blob_used, text, strlen(text));
    builder->blob_used += (uint32_t)strlen(text);
    atomic_store(&header->string_count, index + 1);
    return index;
}

/* 0 when memory ran out. Chunks are owned by threads 100, 101, ... */
static inline int build_journal(struct builder *builder, uint32_t chunks) {
    memset(builder, 0, sizeof(*builder));
    builder->size = MU_CHUNKS_OFFSET + (size_t)chunks * MU_CHUNK_BYTES;
    builder->bytes = calloc(1, builder->size);
    if (builder->bytes == NULL) {
        return 0;
    }
    builder->next_node = 1;
    struct mu_journal_header *header = built_header(builder);
    memcpy(header->magic, MU_JOURNAL_MAGIC, sizeof(header->magic));
    header->version = MU_JOURNAL_VERSION;
    header->byte_order = MU_JOURNAL_BYTE_ORDER;
    header->header_bytes = MU_JOURNAL_HEADER_BYTES;
    header->chunk_bytes = MU_CHUNK_BYTES;
    header->chunks_max = MU_CHUNKS_MAX;
    header->strings_offset = MU_STRINGS_OFFSET;
    header->blob_offset = MU_BLOB_OFFSET;
    header->chunks_offset = MU_CHUNKS_OFFSET;
    header->file_bytes = MU_JOURNAL_BYTES;
    memcpy(header->host, "host-a", 7);
    memcpy(header->label, "rank_0", 7);
    memcpy(header->csv_name, "profile_rank_0.csv", 19);
    atomic_store(&header->string_count, 1);
    atomic_store(&header->chunk_count, chunks);
    header->anchor_sets[0].count = 2;
    header->anchor_sets[0].anchors[1].ticks = 1000000000;
    header->anchor_sets[0].anchors[1].mono_ns = 1000000000;
    header->commits[1].real_offset_ns = BUILT_REAL_NS;
    atomic_store(&header->commits[1].epoch, 1);
    for (uint32_t i = 0; i < chunks; i++) {
        atomic_store(&built_chunk(builder, i)->state, MU_CHUNK_OWNED);
        atomic_store(&built_chunk(builder, i)->tid, 100 + i);
    }
    return 1;
}

/* A finished stage at the head of the ring; returns it, to be spoiled. */
static inline struct mu_record *build_stage(struct builder *builder, uint32_t chunk_index,
                                            uint32_t name, uint64_t start, uint64_t end) {
    struct mu_chunk_header *chunk = built_chunk(builder, chunk_index);
    uint64_t head = atomic_load(&chunk->head);
    struct mu_record *record = built_slot(chunk, head);
    memset(record, 0, sizeof(*record));
    record->kind = MU_RECORD_STAGE;
    record->name = (uint16_t)name;
    record->slots = 1;
    record->node = builder->next_node++;
    record->start = start;
    record->end = end;
    atomic_store(&chunk->head, head + 1);
    return record;
}

static inline void build_payload(struct mu_chunk_header *chunk, uint64_t position,
                                 const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        uint8_t *slot = (uint8_t *)built_slot(chunk, position + i / MU_SLOT_BYTES);
        slot[i % MU_SLOT_BYTES] = ((const uint8_t *)bytes)[i];
    }
}

/* An event with a name and metadata behind it, which may run over the ring's end. */
static inline struct mu_record *build_event(struct builder *builder, uint32_t chunk_index, int type,
                                            const char *name, const char *metadata, uint64_t at) {
    struct mu_chunk_header *chunk = built_chunk(builder, chunk_index);
    uint64_t head = atomic_load(&chunk->head);
    struct mu_record_payload payload = {(uint32_t)strlen(name), (uint32_t)strlen(metadata)};
    size_t bytes = sizeof(payload) + payload.name_bytes + payload.metadata_bytes;
    uint8_t *text = calloc(1, bytes);
    struct mu_record *record = built_slot(chunk, head);
    if (text == NULL) {
        return NULL;
    }
    memcpy(text, &payload, sizeof(payload));
    memcpy(text + sizeof(payload), name, payload.name_bytes);
    memcpy(text + sizeof(payload) + payload.name_bytes, metadata, payload.metadata_bytes);
    memset(record, 0, sizeof(*record));
    record->kind = MU_RECORD_EVENT;
    record->event = (uint8_t)type;
    record->slots = (uint16_t)(1 + (bytes + MU_SLOT_BYTES - 1) / MU_SLOT_BYTES);
    record->start = record->end = at;
    build_payload(chunk, head + 1, text, bytes);
    free(text);
    atomic_store(&chunk->head, head + record->slots);
    return record;
}

static inline struct mu_open_stage *build_open(struct builder *builder, uint32_t chunk_index,
                                               uint32_t name, uint64_t start) {
    struct mu_chunk_header *chunk = built_chunk(builder, chunk_index);
    uint32_t depth = atomic_load(&chunk->depth);
    struct mu_open_stage *open = &chunk->open[depth];
    atomic_store(&open->start, start);
    atomic_store(&open->name, name);
    atomic_store(&open->parent, depth == 0 ? 0 : atomic_load(&open[-1].node));
    atomic_store(&open->node, builder->next_node++);
    atomic_store(&chunk->depth, depth + 1);
    return open;
}

#endif
