#include "stages/py_handles.h"

#include <string.h>

enum { STAGES_CACHED_MAX = 4096 };

/* --- tables ------------------------------------------------------------------------------- */

/* One that a thread which ended has left; NULL for none. */
static struct mu_py_handles *take_left(struct mu_py_timer *timer) {
    struct mu_py_handles *handles = timer->handles;
    while (handles != NULL && atomic_exchange(&handles->in_use, true)) {
        handles = handles->next;
    }
    return handles;
}

static struct mu_py_handles *add(struct mu_py_timer *timer) {
    struct mu_py_handles *handles = PyMem_Calloc(1, sizeof(*handles));
    PyObject *stages = handles == NULL ? NULL : PyDict_New();
    if (stages == NULL) {
        PyMem_Free(handles);
        return (struct mu_py_handles *)PyErr_NoMemory();
    }
    atomic_init(&handles->in_use, true);
    handles->stages = stages;
    handles->next = timer->handles;
    while (!atomic_compare_exchange_weak(&timer->handles, &handles->next, handles)) {
    }
    return handles;
}

struct mu_py_handles *mu_py_handles_new(struct mu_py_timer *timer) {
    struct mu_py_handles *handles = take_left(timer);
    if (handles == NULL) {
        handles = add(timer);
    }
    struct mu_thread_buffer *buffer = MU_FREE_THREADED ? mu_py_thread_buffer(&timer->timer) : NULL;
    if (handles != NULL && buffer != NULL) {
        buffer->in_use = &handles->in_use;
    }
    return handles;
}

int mu_py_handles_traverse(struct mu_py_timer *timer, visitproc visit, void *arg) {
    for (struct mu_py_handles *each = timer->handles; each != NULL; each = each->next) {
        Py_VISIT(each->stages);
    }
    return 0;
}

void mu_py_handles_clear(struct mu_py_timer *timer) {
    for (struct mu_py_handles *each = timer->handles; each != NULL; each = each->next) {
        memset(each->recent, 0, sizeof(each->recent));
        Py_CLEAR(each->stages);
    }
}

void mu_py_handles_free(struct mu_py_timer *timer) {
    struct mu_py_handles *each = timer->handles;
    timer->handles = NULL;
    while (each != NULL) {
        struct mu_py_handles *next = each->next;
        Py_XDECREF(each->stages);
        PyMem_Free(each);
        each = next;
    }
}

/* --- handles ------------------------------------------------------------------------------ */

/* Before a cached handle is replaced, and perhaps freed; NULL: there is none. */
static void forget_recent(struct mu_py_handles *handles, PyObject *handle) {
    struct mu_recent_stage *recent =
        handle == NULL ? NULL : mu_py_handles_recent(handles, ((struct mu_py_stage *)handle)->text);
    if (recent != NULL && (PyObject *)recent->stage == handle) {
        *recent = (struct mu_recent_stage){NULL, NULL};
    }
}

/* A new handle takes the place of `cached`, so that each ends its own; NULL: there is none. */
static PyObject *replace(struct mu_py_handles *handles, struct mu_py_timer *timer,
                         PyObject *stage_name, PyObject *cached) {
    PyObject *stage = mu_py_stage_new(timer, stage_name, NULL, NULL);
    bool is_full = cached == NULL && PyDict_GET_SIZE(handles->stages) >= STAGES_CACHED_MAX;
    if (stage == NULL || is_full) {
        return stage;
    }
    forget_recent(handles, cached);
    if (PyDict_SetItem(handles->stages, stage_name, stage) < 0) {
        Py_CLEAR(stage);
        return NULL;
    }
    struct mu_recent_stage *recent = mu_py_handles_recent(handles, stage_name);
    recent->name = stage_name;
    recent->stage = (struct mu_py_stage *)stage;
    return stage;
}

PyObject *mu_py_handles_get(struct mu_py_handles *handles, struct mu_py_timer *timer,
                            PyObject *stage_name) {
    struct mu_py_name name;
    if (mu_py_name_of(stage_name, "stage_name", &name) < 0) {
        return NULL;
    }
    if (handles->stages == NULL) { /* the garbage collector has cleared the timer */
        return mu_py_stage_new(timer, stage_name, NULL, NULL);
    }
    PyObject *cached = mu_py_dict_value(handles->stages, stage_name);
    if (cached != NULL && mu_py_count_of(&((struct mu_py_stage *)cached)->entered) == 0) {
        return cached;
    }
    PyObject *stage = PyErr_Occurred() ? NULL : replace(handles, timer, stage_name, cached);
    Py_XDECREF(cached);
    return stage;
}
