/* What the module owns, and the table of its subsystems.
 *
 * One struct for each module object; nothing here is static. A subsystem that holds Python objects
 * for the life of the module adds its fields to the struct, and traverse and clear functions to
 * the lists in module.c. Where there is no GIL, what changes after the module was set up is atomic,
 * or is guarded by one of the locks, as its comment says.
 */
#ifndef MU_STATE_H
#define MU_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "core/free_threading.h"
#include "core/py_exchange.h"

struct mu_nvtx;
struct mu_recorder;
struct mu_stack_reader;
struct mu_timer;

enum { MU_PY_HOOK_FIELDS = 4, MU_PY_HOOK_EVENTS_KEPT = 16 };

struct mu_state {
    struct mu_py_lock lock;         /* of the hooks, and of what is made at first use */
    struct mu_py_lock windows_lock; /* of who opened a capture window, see py_calls.h */
    struct mu_py_lock timing_lock;  /* of which TimeRecorders are enabled */
    PyObject *format_error;         /* owned: the exception type my_utils._core.FormatError */
    PyObject *warning_hook;         /* owned: callable(kind, message), or NULL; `lock` */
    PyObject *step_hook;            /* owned: callable(timer, step), or NULL; `lock` */
    PyTypeObject *timer_type;       /* owned */
    PyTypeObject *run_stages_type;  /* owned */
    PyTypeObject *stage_type;       /* owned */
    PyTypeObject *no_op_stage_type; /* owned */
    PyTypeObject *tensor_diff_type; /* owned */
    PyObject *no_op_stage;          /* owned: the one stage of all NoOpTimers */
    PyTypeObject *hook_event_type;  /* owned */
    PyObject *hook_event_names[MU_PY_HOOK_FIELDS]; /* owned: of the fields, in their order */
    PyObject *hook_events[MU_PY_HOOK_EVENTS_KEPT]; /* owned: memory of freed events, no objects */
    int hook_events_free;                          /* of these */
    _Atomic uint64_t hook_events_entered;          /* numbers given to events, see py_calls.h */
    PyTypeObject *call_type;                       /* owned: struct mu_py_call */
    PyObject *calls;                   /* owned: a context variable, the innermost call or None */
    PyObject *key_iter;                /* owned: "iter" */
    PyObject *key_microbatch;          /* owned: "microbatch_index" */
    PyTypeObject *forward_passes_type; /* owned */
    struct mu_recorder *reserved;      /* owned: memory of the recorder before its first use */
    _Atomic(struct mu_recorder *) recorder; /* owned; NULL before the first use */
    struct mu_timer *event_timer; /* owned: its thread buffers carry the events of log_event */
    _Atomic bool watches_forks;
    _Atomic uint32_t reported_troubles;             /* bits of the kinds that were warned of */
    _Atomic uint32_t reported_cuda;                 /* the same for GPU times */
    _Atomic(struct mu_stack_reader *) stack_reader; /* owned; NULL before the first use */
    _Atomic(struct mu_nvtx *) nvtx;                 /* owned; NULL while no tool listens */
    _Atomic bool nvtx_asked;
    _Atomic bool gpu_kernels_off;         /* they failed, and the user was warned */
    PyTypeObject *digest_type;            /* owned: TensorDigest */
    PyTypeObject *sums_type;              /* owned: TensorSums */
    PyTypeObject *tensor_stats_type;      /* owned */
    PyTypeObject *nan_inf_count_type;     /* owned */
    PyTypeObject *module_hook_type;       /* owned */
    struct mu_py_exchange exchange;       /* torch's functions for its tensors */
    PyTypeObject *time_recorder_type;     /* owned */
    PyTypeObject *timed_block_type;       /* owned */
    PyObject *recorder_stack;             /* owned: a context variable, tuples of TimeRecorders */
    _Atomic Py_ssize_t enabled_recorders; /* in all threads and tasks */
    PyObject *timing_switch;              /* owned: a TimingSwitch */
    _Atomic uint64_t time_recorders;      /* made so far */

    PyTypeObject *bucket_hook_type;  /* owned */
    PyTypeObject *bucket_times_type; /* owned */
};

extern PyModuleDef mu_module;

static inline struct mu_state *mu_state_of(PyObject *module) {
    return (struct mu_state *)PyModule_GetState(module);
}

/* The state of the module that made the type of `object`, or one of its bases; borrowed. NULL with
 * TypeError set when no type of this module is among them. */
struct mu_state *mu_state_of_object(PyObject *object);

/* Each adds the types and functions of one subsystem to the module: 0, or -1 with an exception. */
int mu_py_errors_exec(PyObject *module);
int mu_py_main_thread_exec(PyObject *module);
int mu_py_recorder_exec(PyObject *module);
int mu_py_events_exec(PyObject *module);
int mu_py_control_exec(PyObject *module);
int mu_py_timer_exec(PyObject *module);
int mu_py_stage_exec(PyObject *module);
int mu_py_no_op_exec(PyObject *module);
int mu_py_cuda_exec(PyObject *module);
int mu_py_gpu_kernels_exec(PyObject *module);
int mu_py_gpu_events_exec(PyObject *module);
int mu_py_journal_exec(PyObject *module);
int mu_py_trace_exec(PyObject *module);
int mu_py_stage_table_exec(PyObject *module);
int mu_py_windows_exec(PyObject *module);
int mu_py_stage_rows_exec(PyObject *module);
int mu_py_durations_exec(PyObject *module);
int mu_py_tensor_exec(PyObject *module);
int mu_py_hook_event_exec(PyObject *module);
int mu_py_calls_exec(PyObject *module);
int mu_py_capture_exec(PyObject *module);
int mu_py_forward_passes_exec(PyObject *module);
int mu_py_torch_ops_exec(PyObject *module);
int mu_py_tensor_hash_exec(PyObject *module);
int mu_py_row_hashes_exec(PyObject *module);
int mu_py_write_memory_exec(PyObject *module);
int mu_py_tensor_sums_exec(PyObject *module);
int mu_py_compare_exec(PyObject *module);
int mu_py_md5_exec(PyObject *module);
int mu_py_stats_exec(PyObject *module);
int mu_py_timing_switch_exec(PyObject *module);
int mu_py_time_recorder_exec(PyObject *module);
int mu_py_timed_exec(PyObject *module);
int mu_py_module_timer_exec(PyObject *module);
int mu_py_run_stages_exec(PyObject *module);
int mu_py_stage_call_exec(PyObject *module);
int mu_py_bucket_times_exec(PyObject *module);
int mu_py_process_stacks_exec(PyObject *module);

/* Frees the memory that is kept for hook events. Their type must still be there: the allocator asks
 * it how much memory is in front of them. */
void mu_py_hook_events_free(struct mu_state *state);
int mu_py_packed_times_exec(PyObject *module);

/* Frees the recorder with all that it has open. */
void mu_py_recorder_release(struct mu_state *state);

#endif
