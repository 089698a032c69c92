/* The bytes of a journal, version 1: a file mapped into the memory of the process that records.
 *
 *   header (two pages) | string index | string bytes | chunk 0 | chunk 1 | ...
 *
 * A chunk belongs to one thread buffer: the stages of one timer on one thread. It holds the thread
 * buffer's open stages and a ring of 64-byte slots. Each field has one writer: its thread (head,
 * open stages, slots) or the drain (tail, commits), so that neither needs a lock; a record is
 * published by the store of `head`. All numbers are in the byte order of the machine, which
 * `byte_order` states. Offsets and lengths are checked by readers, never trusted.
 */
#ifndef MU_JOURNAL_FORMAT_H
#define MU_JOURNAL_FORMAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/hash_table.h"

#define MU_JOURNAL_MAGIC "MUJRNL\r\n"

enum {
    MU_JOURNAL_VERSION = 1,
    MU_JOURNAL_BYTE_ORDER = 0x01020304,
    MU_JOURNAL_HEADER_BYTES = 8192,
    MU_STRINGS_MAX = 4096,
    MU_STRING_BYTES_MAX = 255,
    MU_STRING_BLOB_BYTES = MU_STRINGS_MAX * 256,
    MU_CHUNKS_MAX = 64,
    MU_OPEN_MAX = 64,
    MU_SLOT_BYTES = 64,
    MU_RING_SLOTS = 8192,
    MU_CHUNK_HEADER_BYTES = 8192,
    MU_HELD_MAX = 128,
    MU_JOURNAL_PATH_BYTES = 1280,
};

/* Where a string is in the blob; entry 0 is the empty string. */
struct mu_string_entry {
    uint32_t offset;
    uint32_t length;
};

/* The state of the output after a drain. The epoch is stored last and selects the valid one. */
struct mu_commit {
    _Atomic uint64_t epoch;
    uint64_t csv_bytes;     /* of the current part of the CSV */
    uint64_t csv_part;      /* parts rotated away before it */
    int64_t real_offset_ns; /* real = monotonic + this */
    int64_t user_offset_ns; /* set_time_offset, added to every timestamp */
};

struct mu_anchor_set {
    uint32_t count;
    uint32_t reserved;
    struct mu_anchor anchors[MU_TIMELINE_ANCHORS];
};

struct mu_journal_header {
    char magic[8];
    uint32_t version;
    uint32_t byte_order;
    uint32_t header_bytes;
    uint32_t chunk_bytes;
    uint32_t chunks_max;
    uint32_t counter_clock; /* 1: ticks are of the CPU's counter, 0: ns of CLOCK_MONOTONIC */
    uint64_t strings_offset;
    uint64_t blob_offset;
    uint64_t chunks_offset;
    uint64_t file_bytes;

    int32_t pid;
    int32_t rank;
    int32_t world_size;
    uint32_t attempt;
    uint64_t process_start; /* clock ticks after boot, as in /proc/PID/stat */
    char boot_id[40];
    char host[256];     /* cut to fit; of old journals also the machine_id column */
    char label[64];     /* rank_<R> or rank_<R>.w<K> */
    char csv_name[128]; /* file name of the current part, beside or in `log_dir` */
    char log_dir[1024];

    _Atomic uint32_t string_count;
    _Atomic uint32_t chunk_count; /* chunks that were ever used */
    _Atomic uint64_t dropped;     /* records of threads and timers that found no chunk */
    _Atomic int64_t heartbeat_real_ns;
    _Atomic uint32_t closed; /* 1: the process ended its recording in good order */

    /* The lowest bit of the version selects the valid set. The next version is written into the
     * other set, so that a kill in between leaves a complete set. */
    _Atomic uint32_t anchors_version;
    uint32_t reserved_anchors;
    struct mu_anchor_set anchor_sets[2];

    struct mu_commit commits[2];
    /* Of the commit with the same index: one more than the lost records that rows in the CSV
     * report; 0 in journals of the first release, where nobody knows. */
    uint64_t reported_drops[2];
    uint64_t reported_unplaced[2]; /* the same of those in `dropped` */
    /* Of a journal that moves: the file that it moves to. Once there is a journal of this process
     * there, this file is no longer one. The other one says where it came from. */
    char moved_to[MU_JOURNAL_PATH_BYTES];
    char moved_from[MU_JOURNAL_PATH_BYTES];
    char machine[256]; /* the machine_id column, cut to fit; empty in old journals: the host */
};

/* A stage that runs. `node` is 0 while the slot changes, and where a stage ended before younger
 * ones. A stage keeps its slot, the number of stages around it or a lower one that was free. */
struct mu_open_stage {
    _Atomic uint64_t node;
    _Atomic uint64_t parent;
    _Atomic int64_t step;
    _Atomic uint64_t start; /* ticks */
    _Atomic uint32_t name;
    uint32_t reserved[7];
};

/* The last stage of a slot of which a row is in the CSV. */
struct mu_started {
    uint64_t node;
    int64_t mono_ns; /* of its START row; MU_STAGE_ENDED when its END row is there too */
};

#define MU_STAGE_ENDED INT64_MIN

struct mu_chunk_commit {
    _Atomic uint64_t epoch;
    uint64_t drained; /* slots below are in the CSV, but for what is held */
    uint64_t held_count;
    uint64_t reserved;
    struct mu_started started[MU_OPEN_MAX]; /* by slot */
    uint16_t
        held[MU_HELD_MAX]; /* records whose END rows wait for GPU times: slots before drained */
};

enum mu_chunk_state {
    MU_CHUNK_FREE = 0,
    MU_CHUNK_OWNED = 1,
    MU_CHUNK_RETIRED = 2, /* its thread buffer has ended; free again once it is drained */
};

struct mu_chunk_header {
    _Atomic uint32_t state;
    _Atomic uint32_t tid;
    _Atomic uint32_t tag;         /* string */
    _Atomic uint32_t thread_name; /* string */
    uint64_t reserved[6];
    /* The thread's line. */
    _Atomic uint64_t head;
    _Atomic uint64_t dropped; /* records, because the ring was full; of all its threads */
    _Atomic int64_t step;
    _Atomic uint32_t depth; /* slots of `open` that may be in use */
    uint32_t reserved_thread[9];
    /* The drain's line. */
    _Atomic uint64_t tail;
    uint64_t reserved_drain[7];
    struct mu_open_stage open[MU_OPEN_MAX];
    struct mu_chunk_commit commits[2];
};

enum mu_record_kind {
    MU_RECORD_STAGE = 1,
    MU_RECORD_EVENT = 2,
};

enum mu_record_flag {
    MU_RECORD_INLINE_NAME = 1,   /* the name follows in the next slots; `name` is 0 */
    MU_RECORD_CLOSED_ORDER = 2,  /* closed by a stop of an outer stage */
    MU_RECORD_CLOSED_STEP = 4,   /* closed by set_step */
    MU_RECORD_REAL_TIME = 8,     /* an event whose timestamp the user gave: `end` is Unix ns */
    MU_RECORD_HAS_DURATION = 16, /* an event with a duration: it is in `parent`, ns */
};

/* One slot, and `slots - 1` more that hold the payload: u32 name bytes, u32 metadata bytes, then
 * both texts. Stages carry a payload only with MU_RECORD_INLINE_NAME. */
struct mu_record {
    uint8_t kind;
    uint8_t event; /* enum mu_event_type of an event */
    uint8_t flags;
    uint8_t depth; /* of a stage: its slot in `open`; 255 when beyond those that are kept */
    uint16_t name;
    uint16_t slots;
    uint64_t node;
    uint64_t parent;
    int64_t step;
    uint64_t start;       /* ticks; of an event, when it was recorded */
    uint64_t end;         /* ticks; of an event, see MU_RECORD_REAL_TIME */
    uint32_t span;        /* GPU time span, 0 none */
    uint32_t check;       /* of a payload: mu_payload_check; of a record without one, anything */
    uint64_t duration_ns; /* of a stage, as in its aggregate; 0 in journals of the first release */
};

struct mu_record_payload {
    uint32_t name_bytes;
    uint32_t metadata_bytes;
};

/* After a power loss the pages of a payload may be of different ages. 0 in journals of the first
 * releases. */
static inline uint32_t mu_payload_check(const char *name, size_t name_bytes, const char *metadata,
                                        size_t metadata_bytes) {
    uint64_t hash = mu_hash_u64(mu_hash_bytes(name, name_bytes) ^ metadata_bytes);
    return mu_hash_fold(mu_hash_u64(hash ^ mu_hash_bytes(metadata, metadata_bytes))) | 1;
}

enum { MU_DEPTH_UNKEPT = 255 };

_Static_assert(sizeof(struct mu_record) == MU_SLOT_BYTES, "a record is one slot");
_Static_assert(sizeof(struct mu_journal_header) <= MU_JOURNAL_HEADER_BYTES, "header too large");
_Static_assert(sizeof(struct mu_chunk_header) <= MU_CHUNK_HEADER_BYTES, "chunk header too large");
_Static_assert(sizeof(struct mu_open_stage) == 64, "an open stage is a cache line");

enum {
    MU_STRINGS_OFFSET = MU_JOURNAL_HEADER_BYTES,
    MU_BLOB_OFFSET = MU_STRINGS_OFFSET + MU_STRINGS_MAX * (int)sizeof(struct mu_string_entry),
    MU_CHUNKS_OFFSET = MU_BLOB_OFFSET + MU_STRING_BLOB_BYTES,
    MU_CHUNK_BYTES = MU_CHUNK_HEADER_BYTES + MU_RING_SLOTS * MU_SLOT_BYTES,
    MU_JOURNAL_BYTES = MU_CHUNKS_OFFSET + MU_CHUNKS_MAX * MU_CHUNK_BYTES,
};

#endif
