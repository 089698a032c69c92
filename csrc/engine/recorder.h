/* The recorder of a process: it owns the journal, the lanes of all threads, the names, and the
 * output to which the drain writes.
 *
 * Threads reach their lane through one thread-local pointer. The memory behind it is wiped in a
 * forked child (MADV_WIPEONFORK), which is how a child notices that it is one: it drops what it
 * inherited and starts with a recorder of its own, in memory until it is told where to write.
 *
 * Functions are thread-safe unless they say "nobody may record meanwhile"; the binding sees to
 * that by keeping the GIL.
 */
#ifndef MU_RECORDER_H
#define MU_RECORDER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "aggregate.h"
#include "clock.h"
#include "control.h"
#include "cuda_timing.h"
#include "error.h"
#include "journal.h"
#include "names.h"
#include "output.h"
#include "timer.h"

/* Counts of what went wrong; each kind is reported once by the binding. */
struct mu_troubles {
    _Atomic uint64_t dropped_records; /* a ring was full */
    _Atomic uint64_t dropped_lanes;   /* starts on threads that got no lane */
    _Atomic uint64_t failed_writes;
    _Atomic uint64_t lost_rows;  /* rows of failed writes and of a full memory output */
    _Atomic uint64_t full_names; /* starts whose name found no room in the table */
    _Atomic uint64_t too_deep;   /* starts below the deepest level */
    _Atomic uint64_t cut_metadata;
    _Atomic uint64_t removed_parts; /* parts of the CSV removed to keep under keep_csv_bytes */
    _Atomic uint64_t missing_csv;   /* 1: the CSV or its directory was deleted */
    _Atomic uint64_t lost_journal;  /* 1: its file system was full, it is in memory since */
    _Atomic int last_errno;         /* of the last failed write */
};

struct mu_output_config {
    int kind; /* enum mu_output_kind */
    int rank;
    int world_size;
    int io;                  /* enum mu_io */
    uint64_t max_csv_bytes;  /* 0 never rotates */
    uint64_t keep_csv_bytes; /* 0 keeps all parts */
    char log_dir[1024];
    char journal_dir[1024]; /* empty: beside the CSV where the file system is local */
    char machine[256];      /* machine_id column */
    char text_label[128];   /* the user's label for this process */
};

enum mu_io {
    MU_IO_AUTO = 0, /* inline where the file system is known to be local */
    MU_IO_INLINE = 1,
    MU_IO_BACKGROUND = 2,
};

struct mu_open_report {
    char csv_path[MU_PATH_BYTES];
    char journal_path[MU_PATH_BYTES]; /* empty when there is none; journal_error says why */
    char label[MU_LABEL_BYTES];       /* rank_<R>[.wK] */
    int worker;                       /* K, 0 for none */
    uint32_t attempt;                 /* from 1 */
    uint64_t adopted_journals;
    uint64_t adopted_rows;
    struct mu_error journal_error;
};

struct mu_recorder {
    struct mu_journal journal;
    struct mu_names names;
    struct mu_output output;
    struct mu_timeline timeline;
    struct mu_troubles troubles;
    bool counter;
    _Atomic uint64_t rate; /* ns per tick, 24.40 fixed point */
    _Atomic uint64_t node_next;
    int64_t real_offset_ns; /* real = monotonic + this; changes when the system's clock is set */
    int64_t user_offset_ns;
    uint64_t epoch;          /* of the last commit */
    uint64_t reported_drops; /* records whose loss stands in the output */
    void *fork_guard;        /* a wiped page: 0 in a forked child */

    struct mu_control control; /* requests from outside */

    pthread_mutex_t registry_lock; /* names, lanes, chunks, timers */
    struct mu_thread *threads;
    struct mu_lane *lanes;
    struct mu_timer *timers[MU_TIMERS_MAX];
    uint32_t timers_made;
    _Atomic(struct mu_cuda_pool *) gpu; /* owned; NULL: no GPU times */
    pthread_key_t thread_key;

    pthread_mutex_t drain_lock;     /* timeline, output, commits; taken before registry_lock */
    struct mu_drain *drain;         /* owned scratch memory */
    struct mu_output_config config; /* of the last mu_recorder_open */
    struct mu_open_report opened;   /* what that found */
    bool reopen;                    /* in a forked child: open files when the first lane is made */
    bool in_background;             /* the output may block: only the drain thread writes */
    bool broken;                    /* a forked child that found no memory: nothing is recorded */

    pthread_mutex_t thread_lock; /* the drain thread's own state */
    pthread_cond_t thread_wake;
    pthread_t drain_thread;
    bool thread_runs;
    bool thread_stop;
    _Atomic bool thread_called;
};

MU_MUST_CHECK int mu_recorder_create(struct mu_recorder **out, struct mu_error *err);

/* Stops the drain thread and frees everything; nothing is freed when that thread hangs in a write.
 * Nobody may record meanwhile or later. */
void mu_recorder_destroy(struct mu_recorder *recorder);

/* Must be called before anything else is done with a recorder that may have come through a fork.
 * Cheap when it has not. Returns true when this process is a child that starts afresh. */
bool mu_recorder_check_fork(struct mu_recorder *recorder);

/* Where rows go from now on; see output.h. What is recorded and not yet written moves along.
 * Nobody may record meanwhile. On failure the recorder goes on as before. */
MU_MUST_CHECK int mu_recorder_open(struct mu_recorder *recorder,
                                   const struct mu_output_config *config,
                                   struct mu_open_report *report, struct mu_error *err);

/* Writes everything out and goes back to memory. Nobody may record meanwhile. */
MU_MUST_CHECK int mu_recorder_close(struct mu_recorder *recorder, struct mu_error *err);

/* After mu_timer_new_lane returned NULL: when that was for want of room in the journal's file
 * system, moves the journal to memory, and true says that another attempt is worth while. Nobody
 * may record meanwhile. */
bool mu_recorder_give_up_journal(struct mu_recorder *recorder);

/* Turns complete records into rows and writes them. `wait_ns` bounds the wait for a drain that is
 * under way; when it is over, or when the output may block, the drain thread is called instead. */
void mu_recorder_drain(struct mu_recorder *recorder, int64_t wait_ns);

/* The rows that wait in memory, as text that the caller frees; nothing while there are files.
 * MU_ERR_STATE when the output in use does not answer within `wait_ns`. */
MU_MUST_CHECK int mu_recorder_copy_memory(struct mu_recorder *recorder, int64_t wait_ns,
                                          char **text, size_t *length, struct mu_error *err);

/* Drains, then shifts all later timestamps. */
void mu_recorder_set_time_offset(struct mu_recorder *recorder, int64_t offset_ns);

/* From now on stages may have GPU times. Once for a recorder; later calls change nothing. Nobody
 * may record meanwhile. */
MU_MUST_CHECK int mu_recorder_use_gpu(struct mu_recorder *recorder,
                                      const struct mu_cuda_pool_options *options,
                                      struct mu_error *err);

/* The path's name and its parent's number; false for a number that is not in use, and for the
 * root. The name is NULL for MU_PATH_OTHER; its bytes never move. */
bool mu_recorder_path(struct mu_recorder *recorder, uint16_t path, const char **name,
                      size_t *length, uint16_t *parent);

#endif
