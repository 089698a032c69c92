/* Fuzzes the journal reader. A journal is large and mostly empty, so an input is a list of patches
 * to a whole one: 12 bytes each, a little-endian place and a value. Bits 30 and 31 of the place say
 * how many bytes of the value count (1, 2, 4 or 8), bits 28 and 29 in which region it is, so that
 * few bits choose a field that matters. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "journal/journal_reader.h"
#include "tests/journal/journal_builder.h"

enum { CHUNKS = 2, PATCH_BYTES = 12, SEED_SLOTS = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fill(struct builder *builder) {
    uint32_t outer = build_string(builder, "outer"), inner = build_string(builder, "inner, \"x\"");
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        build_open(builder, chunk, outer, 10);
        build_open(builder, chunk, inner, 2000);
        for (uint64_t i = 0; i < 6; i++) {
            build_stage(builder, chunk, inner, 100 * i + 20, 100 * i + 70)->depth = 1;
            build_event(builder, chunk, 4, "loss", "value=0.5,text=a long text that needs slots",
                        100 * i + 80);
        }
        struct mu_chunk_commit *commit = &built_chunk(builder, chunk)->commits[0];
        commit->drained = 1;
        commit->held_count = 1;
        commit->held[0] = 1;
        atomic_store(&commit->epoch, 1);
    }
    memcpy(built_header(builder)->log_dir, "/nowhere", 9);
}

/* Header, strings, a chunk's header, a ring's first slots. */
static size_t place_of(uint32_t place) {
    size_t offset = place & 0xfffffff;
    size_t chunk = MU_CHUNKS_OFFSET + (size_t)(offset % CHUNKS) * MU_CHUNK_BYTES;
    switch (place >> 28 & 3) {
    case 0:
        return offset % MU_JOURNAL_HEADER_BYTES;
    case 1:
        return MU_STRINGS_OFFSET + offset % 256;
    case 2:
        return chunk + offset / CHUNKS % MU_CHUNK_HEADER_BYTES;
    default:
        return chunk + MU_CHUNK_HEADER_BYTES + offset / CHUNKS % (SEED_SLOTS * MU_SLOT_BYTES);
    }
}

/* Applying the list a second time, from its end, puts back what was there: each patch keeps the
 * bytes that it replaces. */
static void patch(struct builder *builder, uint8_t *list, size_t count, bool backwards) {
    for (size_t i = 0; i < count; i++) {
        uint8_t *entry = list + PATCH_BYTES * (backwards ? count - 1 - i : i);
        uint8_t before[8];
        uint32_t place;
        memcpy(&place, entry, sizeof(place));
        uint8_t *at = builder->bytes + place_of(place);
        size_t bytes = (size_t)1 << (place >> 30);
        memcpy(before, at, bytes);
        memcpy(at, entry + sizeof(place), bytes);
        memcpy(entry + sizeof(place), before, bytes);
    }
}

static void read_all(const uint8_t *bytes, size_t size) {
    struct mu_journal_image image;
    struct mu_error err;
    if (mu_journal_image_open(&image, bytes, size, &err) != MU_OK) {
        return;
    }
    struct mu_csv_writer writer;
    struct mu_recovered recovered;
    struct mu_seen_thread *thread = malloc(sizeof(*thread));
    char path[512];
    mu_csv_writer_init(&writer);
    mu_error_kept(mu_journal_image_rows(&image, &writer, &recovered, &err));
    mu_journal_image_csv_path(&image, "/nowhere/rank_0.1.2.journal", path, sizeof(path));
    for (uint32_t i = 0; thread != NULL && i <= image.chunk_count; i++) {
        mu_journal_image_thread(&image, i, thread);
    }
    mu_journal_image_dropped(&image);
    free(thread);
    mu_csv_writer_free(&writer);
    mu_journal_image_close(&image);
}

/* The first two bytes of an input cut the file, in steps of 64 bytes from its end. */
static void read_cut(const struct builder *builder, size_t cut) {
    size_t length = cut < builder->size ? builder->size - cut : 0;
    if (cut == 0) {
        read_all(builder->bytes, length);
        return;
    }
    uint8_t *exact = malloc(length + (length == 0));
    if (exact != NULL) {
        memcpy(exact, builder->bytes, length);
        read_all(exact, length);
    }
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct builder builder; /* made once: a journal has two megabytes */
    if (builder.bytes == NULL) {
        if (!build_journal(&builder, CHUNKS)) {
            return 0;
        }
        fill(&builder);
    }
    size_t count = size < 2 ? 0 : (size - 2) / PATCH_BYTES;
    uint8_t *list = malloc(count * PATCH_BYTES + 1);
    if (size < 2 || list == NULL) {
        free(list);
        return 0;
    }
    memcpy(list, data + 2, count * PATCH_BYTES);
    patch(&builder, list, count, false);
    read_cut(&builder, (data[0] | (size_t)data[1] << 8) * 64);
    patch(&builder, list, count, true);
    free(list);
    return 0;
}
