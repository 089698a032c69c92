/* The writer's side of a journal: the mapping, its string table and its chunks.
 *
 * The mapping begins as private memory. It can be moved to a file and back without changing its
 * address, so thread buffers keep their pointers, and records from before a log directory was known
 * are kept. Nobody may record while it moves: mu_journal_attach and mu_journal_detach see to that
 * by `alone`, and touch files before and after. The other functions need one caller at a time (the
 * recorder's registry lock).
 */
#ifndef MU_JOURNAL_H
#define MU_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/own_files.h"
#include "journal/journal_format.h"

struct mu_journal_copies;

/* Keeps everybody else from recording, and from the journal's other functions, between the two
 * calls. */
struct mu_alone {
    void (*begin)(void *owner);
    void (*end)(void *owner);
    void *owner;
};

struct mu_journal {
    uint8_t *base;                    /* owned: MU_JOURNAL_BYTES */
    int fd;                           /* owned and locked, -1 while the journal is in memory */
    struct mu_file_id file;           /* what fd was opened for */
    char path[MU_JOURNAL_PATH_BYTES]; /* of the file */
    uint32_t blob_used;               /* bytes */
    uint32_t blob_backed;             /* bytes reserved on the disk */
    int guard;                    /* in the table of page_guard, MU_GUARD_NONE while in memory */
    const struct mu_alone *alone; /* borrowed; NULL: the caller has seen to it */
    struct mu_journal_copies *copies; /* owned: what no drain could do without; NULL in memory */
};

static inline struct mu_journal_header *mu_journal_header(const struct mu_journal *journal) {
    return (struct mu_journal_header *)(void *)journal->base;
}

static inline struct mu_chunk_header *mu_journal_chunk(const struct mu_journal *journal,
                                                       uint32_t index) {
    return (struct mu_chunk_header *)(void *)(journal->base + MU_CHUNKS_OFFSET +
                                              (size_t)index * MU_CHUNK_BYTES);
}

static inline struct mu_record *mu_chunk_ring(struct mu_chunk_header *chunk) {
    return (struct mu_record *)(void *)((uint8_t *)chunk + MU_CHUNK_HEADER_BYTES);
}

MU_MUST_CHECK int mu_journal_init_memory(struct mu_journal *journal, bool counter_clock,
                                         struct mu_error *err);

/* Unmaps and closes; the file, if any, stays. */
void mu_journal_release(struct mu_journal *journal);

/* Moves everything into a new file at `path`, which must not exist, and locks it. Disk space is
 * reserved for all that is in use, so that a full disk is an error here and not a SIGBUS later. On
 * failure the journal stays as it was and no file is left. */
MU_MUST_CHECK int mu_journal_attach(struct mu_journal *journal, const char *path,
                                    struct mu_error *err);

/* What changes in the header when the journal goes on with other files. */
struct mu_journal_change {
    void (*apply)(void *owner, struct mu_journal_header *header);
    void *owner;
};

/* Moves the journal from its file into another one and removes the old file. A kill at any moment
 * finds everything in one of them, which mu_journal_has_moved says. `change` is made in the new
 * file before it is a journal. */
MU_MUST_CHECK int mu_journal_move(struct mu_journal *journal, const char *path,
                                  const struct mu_journal_change *change, struct mu_error *err);

/* Moves everything back into memory and removes the file. */
MU_MUST_CHECK int mu_journal_detach(struct mu_journal *journal, struct mu_error *err);

/* Takes a free chunk and makes it OWNED. MU_ERR_LIMIT when all are taken. */
MU_MUST_CHECK int mu_journal_claim_chunk(struct mu_journal *journal, uint32_t *index,
                                         struct mu_error *err);

/* Must be called when the chunk's thread, tag or name have changed. */
void mu_journal_keep_chunk(struct mu_journal *journal, uint32_t index);

/* Whether the file system took pages of the file away. The file is removed then, and the journal
 * goes on in memory. */
bool mu_journal_is_lost(const struct mu_journal *journal);

/* Adds a string of at most MU_STRING_BYTES_MAX bytes; its number is above 0. MU_ERR_LIMIT when
 * the table is full. The bytes never move. */
MU_MUST_CHECK int mu_journal_add_string(struct mu_journal *journal, const char *bytes,
                                        size_t length, uint32_t *index, struct mu_error *err);

static inline const char *mu_journal_string(const struct mu_journal *journal, uint32_t index,
                                            size_t *length) {
    const struct mu_string_entry *entry =
        (const struct mu_string_entry *)(const void *)(journal->base + MU_STRINGS_OFFSET) + index;
    *length = entry->length;
    return (const char *)(journal->base + MU_BLOB_OFFSET + entry->offset);
}

/* Appends the timeline's anchors for readers; only the drain calls this. */
void mu_journal_publish_anchors(struct mu_journal *journal, const struct mu_timeline *timeline);

#endif
