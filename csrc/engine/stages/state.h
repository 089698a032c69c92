/* What a recorder and its timers are made of.
 *
 * The files of this folder share these structs. The comments at the locks state what each lock
 * guards.
 */
#ifndef MU_STAGES_STATE_H
#define MU_STAGES_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/error.h"
#include "capture/control.h"
#include "journal/gpu_rows.h"
#include "journal/journal.h"
#include "profile_files/output.h"
#include "profile_files/window_files.h"
#include "stages/names.h"

struct mu_aggregate;
struct mu_cuda_pool;
struct mu_drain;
struct mu_stack_service;
struct mu_thread_buffer;
struct mu_thread;

enum { MU_TIMERS_MAX = 480, MU_TAG_BYTES_MAX = 64 };

struct mu_timer {
    struct mu_recorder *recorder; /* borrowed */
    uint32_t index;               /* in mu_thread.buffers; MU_TIMERS_MAX: it found no place */
    uint32_t generation;          /* differs from timers that had the index before */
    _Atomic int64_t step;
    char tag[MU_TAG_BYTES_MAX];
    /* Owned, by path; NULL before the first. */
    struct mu_aggregate **retired; /* of threads that ended */
    struct mu_aggregate **gpu;     /* GPU times */
};

static inline bool mu_timer_has_place(const struct mu_timer *timer) {
    return timer->index < MU_TIMERS_MAX;
}

/* Counts of what went wrong; each kind is reported once by the binding. */
struct mu_troubles {
    _Atomic uint64_t dropped_records;  /* a ring was full */
    _Atomic uint64_t dropped_buffers;  /* calls on threads that got no thread buffer */
    _Atomic uint64_t unplaced_timers;  /* beyond MU_TIMERS_MAX */
    _Atomic uint64_t unplaced_records; /* stages and events of either */
    _Atomic uint64_t no_memory;        /* starts of a recorder that had no memory to begin with */
    _Atomic uint64_t no_thread_key;    /* starts of a recorder that found none left */
    _Atomic uint64_t failed_writes;
    _Atomic uint64_t lost_rows;  /* rows of failed writes and of a full memory output */
    _Atomic uint64_t full_names; /* starts whose name did not fit into the table */
    _Atomic uint64_t too_deep;   /* starts below the deepest level */
    _Atomic uint64_t cut_metadata;
    _Atomic uint64_t failed_windows;   /* blocks of windows that were not written */
    _Atomic uint64_t failed_rotations; /* parts of the CSV that could not be begun */
    _Atomic uint64_t removed_parts;    /* parts of the CSV removed to keep under keep_csv_bytes */
    _Atomic uint64_t missing_csv;      /* 1: the CSV or its directory was deleted */
    _Atomic uint64_t lost_journal;     /* 1: its file system was full, it is in memory since */
    _Atomic uint64_t lost_records;     /* that were in pages of the journal which are gone */
    _Atomic int last_errno;            /* of the last failed write */
};

struct mu_output_config {
    int kind; /* enum mu_output_kind */
    int rank;
    int world_size;
    int io;                  /* enum mu_io */
    uint32_t least_attempt;  /* what a launcher says, 0 nothing; files may know of more */
    uint64_t max_csv_bytes;  /* 0 never rotates */
    uint64_t keep_csv_bytes; /* 0 keeps all parts */
    uint64_t windows_bytes;  /* of windows of steps; 0 writes none */
    char log_dir[1024];
    char journal_dir[1024]; /* empty: beside the CSV where the file system is local */
    char host[256];         /* empty: the machine */
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
    int64_t dead_seen_ns;             /* see choose_attempt */
    uint64_t adopted_journals;
    uint64_t adopted_rows;
    uint64_t foreign_journals;    /* of other users; they stay */
    uint64_t unreadable_journals; /* that were renamed */
    uint64_t doubtful_journals;   /* of another boot, or with pages of several moments */
    uint64_t doubtful_rows;       /* that were added from them */
    uint64_t unproven_records;    /* in them, that were not */
    bool foreign_csv;             /* a CSV of an earlier name is not ours */
    struct mu_error journal_error;
};

struct mu_output_state {
    int kind; /* enum mu_output_kind */
    int rank;
    uint32_t attempt; /* this and the label: of an open file, else 0 and empty */
    uint64_t csv_bytes;
    uint64_t part;
    char csv_path[MU_PATH_BYTES];
    char journal_path[MU_PATH_BYTES]; /* empty while the journal is in memory */
    char label[MU_LABEL_BYTES];
};

struct mu_recorder {
    struct mu_journal journal;
    struct mu_names *names; /* owned */
    struct mu_output output;
    struct mu_window_files window_files;
    uint32_t windows_attempt; /* whose windows they are */
    struct mu_timeline timeline;
    struct mu_troubles troubles;
    _Atomic uint64_t rate; /* ns per tick, 24.40 fixed point */
    _Atomic uint64_t node_next;
    int64_t real_offset_ns; /* real = monotonic + this; changes when the system's clock is set */
    _Atomic int64_t user_offset_ns;
    int64_t stepped_ns;      /* what the steps of the clock since user_offset_ns was set sum to */
    uint64_t epoch;          /* of the last commit */
    uint64_t beats;          /* heartbeat files written */
    uint64_t reported_drops; /* lost records that a row in the output reports */
    uint64_t reported_unplaced; /* unplaced records that one reports */
    uint64_t lost_rows_before;  /* rows and records that were lost before these files were begun, */
    uint64_t lost_records_before; /* of which their heartbeat does not tell */
    void *fork_guard;             /* a wiped page: 0 in a forked child */
    uint32_t no_guard;            /* in its place where there is no memory for the page */

    /* Its owner, and each thread that recorded and has not ended: the last of them frees the
     * memory, for a thread may end at any time, and looks for its recorder then. */
    _Atomic uint32_t users;
    bool ended; /* destroyed by its owner; under registry_lock */
    bool counter;
    bool guards_moves;       /* no GIL keeps threads from recording while the journal moves */
    _Atomic uint32_t moving; /* enum mu_moving, see recording.h */

    struct mu_control control;                 /* requests of other processes */
    _Atomic(struct mu_stack_service *) stacks; /* owned: serves those for stacks; NULL: nobody */

    pthread_mutex_t registry_lock; /* names, thread buffers, chunks, timers, what drains commit */
    struct mu_thread *threads;
    struct mu_thread_buffer *buffers;
    struct mu_timer *timers[MU_TIMERS_MAX];
    uint32_t timers_made;
    _Atomic(struct mu_cuda_pool *) gpu; /* owned; NULL: no GPU times */
    pthread_key_t thread_key;
    bool no_chunk;                    /* the last thread buffer found none in the journal */
    bool has_key;                     /* else the process had none left, and nothing is recorded */
    struct mu_output_state published; /* what others may know of the output */

    pthread_mutex_t drain_lock;     /* timeline, output, commits; taken before the next */
    pthread_mutex_t move_lock;      /* see recording.h; taken before registry_lock */
    struct mu_drain *drain;         /* owned scratch memory */
    struct mu_output_config config; /* of the last mu_recorder_open */
    struct mu_open_report opened;   /* the result of that */
    const struct mu_alone *gil; /* borrowed: of the open or close that runs; NULL: it has the GIL */
    _Atomic bool reopen; /* in a forked child: open files when the first thread buffer is made */
    _Atomic bool in_background; /* the output may block: only the drain thread writes */
    _Atomic bool broken;        /* nothing is recorded: there was no memory, or no thread key */

    /* Borrowed functions of the files above, for those below. Set by mu_recorder_create. */
    void (*call_drain)(struct mu_recorder *recorder); /* mu_drain_thread_call */
    mu_gpu_add add_gpu_time;                          /* mu_timer_add_gpu_time */

    pthread_mutex_t thread_lock; /* the drain thread's own state */
    pthread_cond_t thread_wake;
    bool thread_runs;
    bool thread_stop;
    _Atomic bool thread_called;
};

/* The label of a GPU span: timer and path in one number. */
static inline uint32_t mu_timer_gpu_label(const struct mu_timer *timer, uint16_t path) {
    return timer->generation << 21 | timer->index << 12 | path;
}

#endif
