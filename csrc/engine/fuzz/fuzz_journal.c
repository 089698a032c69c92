/* The journal reader on a journal with arbitrary changes.
 *
 * A journal is a mebibyte before its first record, so the input is not the file itself: it is a
 * list of changes (where: 4 bytes, how many: 1 byte, the bytes) to a small journal made here, and
 * a first byte that says how much is cut off its end.
 */
#include "journal_reader.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHUNKS = 2, JOURNAL_SIZE = MU_CHUNKS_OFFSET + CHUNKS * MU_CHUNK_BYTES };

static void add_string(uint8_t *bytes, uint32_t index, const char *text) {
    struct mu_string_entry *entry =
        (struct mu_string_entry *)(void *)(bytes + MU_STRINGS_OFFSET) + index;
    entry->offset = index * 16;
    entry->length = (uint32_t)strlen(text);
    memcpy(bytes + MU_BLOB_OFFSET + entry->offset, text, entry->length);
}

static void fill_header(uint8_t *bytes) {
    struct mu_journal_header *header = (void *)bytes;
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
    header->pid = 1;
    memcpy(header->host, "host", 5);
    memcpy(header->label, "rank_0", 7);
    memcpy(header->csv_name, "profile_rank_0.csv", 19);
    header->string_count = 3;
    header->chunk_count = CHUNKS;
    header->anchor_count = 1;
    header->commits[0].epoch = 1;
    add_string(bytes, 1, "forward");
    add_string(bytes, 2, "backward");
}

static void fill_chunk(uint8_t *bytes, uint32_t tid) {
    struct mu_chunk_header *chunk = (void *)bytes;
    struct mu_record *ring = (void *)(bytes + MU_CHUNK_HEADER_BYTES);
    chunk->state = MU_CHUNK_OWNED;
    chunk->tid = tid;
    chunk->head = 4;
    chunk->depth = 1;
    chunk->open[0].node = 9;
    chunk->open[0].name = 2;
    chunk->open[0].start = 2000;
    chunk->commits[0].epoch = 1;
    chunk->commits[0].drained = 1; /* with the END row of the first record held back */
    chunk->commits[0].held_count = 1;
    chunk->commits[0].held[0] = 1;
    ring[0] = (struct mu_record){.kind = MU_RECORD_STAGE, .name = 1, .slots = 1, .node = 1};
    ring[0].end = 1000;
    ring[1] = (struct mu_record){.kind = MU_RECORD_EVENT, .event = 3, .name = 2, .slots = 1};
    ring[2] = (struct mu_record){.kind = MU_RECORD_STAGE, .flags = MU_RECORD_INLINE_NAME};
    ring[2].slots = 2;
    struct mu_record_payload payload = {.name_bytes = 5};
    memcpy(&ring[3], &payload, sizeof(payload));
    memcpy((uint8_t *)&ring[3] + sizeof(payload), "inner", 5);
}

/* Fuzzers mutate small numbers well, so half of the places are counted from the first chunk. */
static size_t place(uint32_t raw) {
    size_t offset = raw >> 1;
    return (raw & 1 ? offset + MU_CHUNKS_OFFSET : offset) % JOURNAL_SIZE;
}

static void apply_changes(uint8_t *bytes, const uint8_t *data, size_t size) {
    while (size > 5) {
        uint32_t raw;
        memcpy(&raw, data, sizeof(raw));
        size_t length = data[4];
        data += 5;
        size -= 5;
        size_t offset = place(raw);
        length = length < size ? length : size;
        length = length < JOURNAL_SIZE - offset ? length : JOURNAL_SIZE - offset;
        memcpy(bytes + offset, data, length);
        data += length;
        size -= length;
    }
}

static void read_journal(const uint8_t *bytes, size_t size) {
    struct mu_journal_image image;
    if (mu_journal_image_open(&image, bytes, size, NULL) != MU_OK) {
        return;
    }
    struct mu_csv_writer writer;
    struct mu_recovered recovered = {0};
    mu_csv_writer_init(&writer);
    mu_journal_image_rows(&image, &writer, &recovered, NULL);
    mu_csv_writer_free(&writer);
    struct mu_seen_lane *lane = malloc(sizeof(*lane));
    for (uint32_t chunk = 0; lane != NULL && chunk < image.chunk_count; chunk++) {
        if (mu_journal_image_lane(&image, chunk, lane) &&
            (lane->depth > MU_OPEN_MAX || lane->last_count > MU_SEEN_LAST_MAX)) {
            abort();
        }
    }
    free(lane);
    char path[256];
    mu_journal_image_csv_path(&image, "/tmp/a.journal", path, sizeof(path));
    mu_journal_image_close(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    /* The exact size, so that a read past the end is seen. */
    size_t kept = data[0] < 128 ? JOURNAL_SIZE : JOURNAL_SIZE / 128 * (data[0] - 127);
    uint8_t *whole = calloc(1, JOURNAL_SIZE);
    uint8_t *bytes = malloc(kept);
    if (whole != NULL && bytes != NULL) {
        fill_header(whole);
        for (uint32_t i = 0; i < CHUNKS; i++) {
            fill_chunk(whole + MU_CHUNKS_OFFSET + (size_t)i * MU_CHUNK_BYTES, 100 + i);
        }
        apply_changes(whole, data + 1, size - 1);
        memcpy(bytes, whole, kept);
        read_journal(bytes, kept);
    }
    free(bytes);
    free(whole);
    return 0;
}
