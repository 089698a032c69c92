/* The RunStages type: the stages of a training that runs without an edit. */
#ifndef MU_PY_RUN_STAGES_H
#define MU_PY_RUN_STAGES_H

#include "run/py_batches.h"
#include "run/py_bucket_times.h"
#include "run/py_host_costs.h"
#include "stages/py_timer.h"

enum mu_run_stage {
    MU_RUN_NONE = -1,
    MU_RUN_INPUT = 0,
    MU_RUN_H2D,
    MU_RUN_FORWARD,
    MU_RUN_LOSS,
    MU_RUN_BACKWARD,
    MU_RUN_OPTIMIZER,
    MU_RUN_COLLECTIVE,
    MU_RUN_CHECKPOINT,
    MU_RUN_EVAL,
    MU_RUN_RESTORE,
    MU_RUN_STAGES,
};

enum { MU_RUN_OPTIMIZERS_DEEP = 8 };

/* A run in which one optimizer steps once an iteration, which is most runs. Its steps are counted
 * here, and only now and then is anybody called for them. What else happens ends it. */
struct mu_py_run_leader {
    const void *optimizer; /* borrowed: whose steps are iterations; NULL: nobody's */
    int64_t number;        /* the iteration that comes next */
    uint64_t ended;        /* where the records of the last step end */
    uint64_t forwards;     /* calls at the last step */
    int64_t calls_at_ns;   /* monotonic time from which on a step is reported */
    int64_t calls_in;      /* so many steps later, too */
    bool stepped;          /* the last step was counted here */
    bool forward_missing;  /* and no forward came before it */
};

/* One training thread has the stages; calls on other threads are not recorded. At most one of the
 * stages is open at a time. */
struct mu_py_run_stages {
    PyObject_HEAD PyObject *make_timer; /* owned: gives the timer at the first stage */
    struct mu_py_timer *timer;          /* owned; NULL before */
    PyObject *gradients;                /* owned: torch.is_grad_enabled */
    PyObject *on_backward;              /* owned: called after a backward that is in no step */
    PyObject *on_forward;               /* owned: called before a forward with gradients; NULL */
    PyObject *is_interrupt;             /* owned: says whether an error is the training's; NULL */
    PyObject *on_step;                  /* owned: called after steps inside a backward */
    PyObject *texts[MU_RUN_STAGES];     /* owned: the names */
    struct mu_py_name names[MU_RUN_STAGES]; /* borrowed from texts */
    unsigned long thread;                   /* the training thread */
    bool on;
    enum mu_run_stage open;   /* the stage that is open in the timer */
    enum mu_run_stage inside; /* the stage whose call runs; never LOSS or OPTIMIZER */
    bool loss_goes_on;        /* `inside` interrupts LOSS */
    bool stepped_inside;      /* an optimizer stepped in the backward that runs */
    const void *optimizers[MU_RUN_OPTIMIZERS_DEEP]; /* borrowed: whose steps run, outermost first */
    int optimizer_depth;
    uint64_t counts[MU_RUN_STAGES]; /* of calls */
    struct mu_py_run_leader leader;
    struct mu_py_batches batches;
    struct mu_py_host_costs host;
    struct mu_py_bucket_times *buckets; /* owned: of the backwards from here on; NULL */
};

/* A call begins on the calling thread. True when it is a stage, and mu_py_run_end must follow.
 * `keeps_loss`: a loss that is being computed goes on after it. Errors are warned of, not raised.
 */
bool mu_py_run_begin(struct mu_py_run_stages *self, enum mu_run_stage stage, bool keeps_loss);

/* It ends. An exception that is set stays set. */
void mu_py_run_end(struct mu_py_run_stages *self);

/* It was no stage after all. */
void mu_py_run_forget(struct mu_py_run_stages *self);

/* An optimizer steps. */
void mu_py_run_begin_step(struct mu_py_run_stages *self, const void *optimizer);

/* Its step ends. True when it was the outermost, and must be reported. */
MU_MUST_CHECK bool mu_py_run_end_step(struct mu_py_run_stages *self, const void *optimizer);

/* -1 with an exception set. */
MU_MUST_CHECK int mu_py_run_make_timer(struct mu_py_run_stages *self);

/* The calling thread's, for rows about the run; NULL before the first stage. */
struct mu_thread_buffer *mu_py_run_event_buffer(struct mu_py_run_stages *self);

/* The hooks of buckets are there only while a backward runs that is looked at. */
void mu_py_run_remove_hooks(struct mu_py_run_stages *self);

#endif
